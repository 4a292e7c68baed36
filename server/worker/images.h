// Code images by content. Each travels once per session.
//
// Ownership: holds the bytes. Threads: the dispatcher's. Errors: CUresult, for the client.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "protocol/calls/internal.h"

namespace gpupool::worker {

class Images {
  public:
    static constexpr std::uint64_t kMaxImageBytes = 1ull << 30;
    static constexpr std::uint64_t kMaxTotalBytes = 8ull << 30;
    static constexpr std::size_t kMaxImages = 64u << 10;

    // True when the image is here already; otherwise its bytes are expected.
    CUresult offer(const ImageHash& hash, std::uint64_t bytes, bool& known);
    CUresult add(const ImageHash& hash, std::uint64_t offset, std::span<const unsigned char> data);
    // The whole image, NUL-terminated (PTX is text), or nullptr.
    std::shared_ptr<const std::vector<std::byte>> find(const ImageHash& hash) const;

  private:
    struct Key {
        std::uint64_t high, low;
        auto operator<=>(const Key&) const = default;
    };
    struct Image {
        std::shared_ptr<std::vector<std::byte>> data;
        std::uint64_t bytes = 0, received_bytes = 0;
    };
    std::map<Key, Image> images_;
    std::uint64_t total_bytes_ = 0;
};

}  // namespace gpupool::worker
