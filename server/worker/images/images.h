// Code images by content hash. Each travels at most once per session, and not at all if the tenant's store has it.
//
// Ownership: owns the bytes.
// Threads: the dispatcher's, except ImageUse::obtain().
// Errors: CUresult, for the client.
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

// One use of an image, in three steps: Images::use() on the dispatcher; obtain() on a helper thread, since reading and
// hashing take time; Images::record_outcome() on the dispatcher.
class ImageUse {
  public:
    enum class Outcome {
        ready,
        wanted,      // neither the session nor the store has it: the client must send it
        false_name,  // the content that the client sent has another hash
    };
    Outcome obtain();
    [[nodiscard]] Outcome outcome() const { return outcome_; }
    // The whole image, NUL-terminated because PTX is text. Valid only if ready.
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

    // The store of earlier sessions' images; null: none. It outlives this object.
    void set_store(ImageStore* store) { store_ = store; }

    // Announces an image of `bytes`, whose content the client will send with add(), unless it is complete here.
    CUresult offer(const ImageHash& hash, std::uint64_t bytes);
    // Appends to an image. `unpacked_bytes`: size of the compressed data when unpacked, at most kMaxPieceBytes; 0: the
    // data is not compressed.
    CUresult add(const ImageHash& hash, std::uint64_t offset, std::span<const unsigned char> data,
                 std::uint64_t unpacked_bytes = 0);

    [[nodiscard]] ImageUse use(const ImageHash& hash) const;
    // Records the outcome of a use for later ones, and keeps a checked image for later sessions.
    void record_outcome(const ImageUse& use);

  private:
    struct Image {
        std::shared_ptr<std::vector<std::byte>> data;
        std::uint64_t bytes = 0, received_bytes = 0;
        bool checked = false;  // the content has been found to match its hash
        [[nodiscard]] bool whole() const { return received_bytes == bytes; }
    };
    [[nodiscard]] bool has_room(std::uint64_t bytes) const;

    std::map<ImageHash, Image> images_;
    std::uint64_t total_bytes_ = 0;
    ImageStore* store_ = nullptr;
};

}  // namespace gpupool::worker
