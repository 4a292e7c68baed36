// Code images of earlier sessions, on disk: one file each in the tenant's folder, named by the SHA-256 of its content.
// The daemon gives that folder (server/images/image_folders.h) and keeps it below its limit.
//
// A session never searches the images of another tenant: knowing a hash does not prove having the content. Content is
// checked against its name on every use; a damaged or forged file is removed and counts as missing. The writer writes
// to a temporary name and renames the file, so no reader sees half of one. Nothing is forced to disk, because a file
// that a crash damages is detected. Several sessions, of different users, may use a folder at the same time.
//
// Ownership: a thread of the store's own writes.
// Threads: any.
// Errors: if writing fails, that is logged once, and existing images are still found.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "common/clock.h"
#include "common/mutex.h"
#include "common/result.h"
#include "common/unique_fd.h"
#include "protocol/calls/internal.h"

namespace gpupool::worker {

// An image and a NUL behind it.
using ImageBytes = std::shared_ptr<std::vector<std::byte>>;

class ImageStore {
  public:
    static constexpr std::uint64_t kMaxImageBytes = 1ull << 30;
    static constexpr std::uint64_t kMaxWaitingBytes = 1ull << 30;  // to be written; further images are not kept

    // `folder`: the tenant's. An image above `limit_bytes` is not kept.
    ImageStore(UniqueFd folder, std::uint64_t limit_bytes, TimeSource& clock = TimeSource::system());
    ~ImageStore();
    ImageStore(const ImageStore&) = delete;
    ImageStore& operator=(const ImageStore&) = delete;

    // Null if the image is not in the store.
    [[nodiscard]] ImageBytes find(const ImageHash& hash);

    // Queues the image to be written. The caller must have checked its content against `hash`.
    void keep(const ImageHash& hash, ImageBytes image);

    // Waits until all is written, at most for `timeout`.
    void finish(std::chrono::milliseconds timeout);

  private:
    void run();
    Status write(const ImageHash& hash, std::span<const std::byte> content);
    bool start_writing();

    TimeSource& clock_;
    const UniqueFd folder_;
    const std::uint64_t limit_bytes_;

    struct Waiting {
        ImageHash hash;
        ImageBytes image;
    };
    Mutex mutex_;
    Condition changed_;
    std::deque<Waiting> waiting_ GP_GUARDED_BY(mutex_);  // the first one is being written
    std::uint64_t waiting_bytes_ GP_GUARDED_BY(mutex_) = 0;
    bool stopping_ GP_GUARDED_BY(mutex_) = false;
    bool complained_ = false;  // used by the writing thread
    std::thread thread_;
};

}  // namespace gpupool::worker
