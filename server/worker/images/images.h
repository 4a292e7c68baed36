// Code images by content. Each travels once per session, and not at all where the tenant's store has it.
//
// Ownership: holds the bytes. Threads: the dispatcher's, but for ImageUse::obtain. Errors: CUresult, for the client.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "protocol/calls/internal.h"
#include "server/worker/images/image_store.h"

namespace gpupool::worker {

// One use of an image: begun on the dispatcher (Images::use), obtained on a helper thread, since reading and hashing
// take time, and settled on the dispatcher (Images::settle).
class ImageUse {
  public:
    enum class Outcome {
        ready,
        wanted,      // neither the session nor the store has it
        false_name,  // what the client sent has another hash
    };
    Outcome obtain();
    [[nodiscard]] Outcome outcome() const { return outcome_; }
    // The whole image, NUL-terminated (PTX is text). Only when it is ready.
    [[nodiscard]] const ImageBytes& bytes() const { return bytes_; }

  private:
    friend class Images;
    ImageHash hash_{};
    ImageBytes bytes_;
    ImageStore* store_ = nullptr;
    bool checked_ = false, from_store_ = false;
    Outcome outcome_ = Outcome::wanted;
};

class Images {
  public:
    static constexpr std::uint64_t kMaxImageBytes = ImageStore::kMaxImageBytes;
    static constexpr std::uint64_t kMaxPieceBytes = 1u << 20;
    static constexpr std::uint64_t kMaxTotalBytes = 8ull << 30;
    static constexpr std::size_t kMaxImages = 64u << 10;

    // Where earlier sessions' images are; null: nowhere. It outlives this.
    void set_store(ImageStore* store) { store_ = store; }

    // Its bytes are expected from now on, unless it is here.
    CUresult offer(const ImageHash& hash, std::uint64_t bytes);
    // `unpacked_bytes`: what the data becomes, at most kMaxPieceBytes; 0: it is as it is.
    CUresult add(const ImageHash& hash, std::uint64_t offset, std::span<const unsigned char> data,
                 std::uint64_t unpacked_bytes = 0);

    [[nodiscard]] ImageUse use(const ImageHash& hash) const;
    // What a use has found out counts for later ones, and for later sessions.
    void settle(const ImageUse& use);

  private:
    struct Image {
        std::shared_ptr<std::vector<std::byte>> data;
        std::uint64_t bytes = 0, received_bytes = 0;
        bool checked = false;  // the content is what its name says
        [[nodiscard]] bool whole() const { return received_bytes == bytes; }
    };
    [[nodiscard]] bool has_room(std::uint64_t bytes) const;

    std::map<ImageHash, Image> images_;
    std::uint64_t total_bytes_ = 0;
    ImageStore* store_ = nullptr;
};

}  // namespace gpupool::worker
