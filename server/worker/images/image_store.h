// Code images of earlier sessions, on disk: one file each, ROOT/TENANT/HASH, named by the SHA-256 of its content.
//
// A session never searches the images of another tenant: knowing a hash does not prove having the content. Content is
// checked against its name on every use; a damaged or forged file is removed and counts as missing. The writer writes
// to a temporary name and renames the file, so no reader sees half of one. Nothing is forced to disk, because a file
// that a crash damages is detected. Several sessions and daemons may use a store at the same time.
//
// The limit holds for all tenants together. Above it, the least recently used images of the tenant that uses most are
// removed first (a file's modification time is that of its last use). A file counts with the disk space that it takes,
// at least kLeastFileBytes; and no tenant keeps more than kMaxFiles.
//
// Ownership: a thread of the store's own writes.
// Threads: any.
// Errors: open() returns why it failed. If writing fails later, that is logged once, and existing images are still
//   found.
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

    static constexpr std::uint64_t kLeastFileBytes = 4096;
    static constexpr std::size_t kMaxFiles = 16u << 10;  // of a tenant
    static constexpr std::size_t kTrimEvery = 1024;      // written files, if the writing never pauses

    // `root` must exist; creates the tenant's folder in it.
    static Result<std::unique_ptr<ImageStore>> open(const std::string& root, const std::string& tenant,
                                                    std::uint64_t limit_bytes,
                                                    TimeSource& clock = TimeSource::system());
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
    explicit ImageStore(TimeSource& clock) : clock_(clock) {}
    void run();
    Status write(const ImageHash& hash, std::span<const std::byte> content);
    void trim();
    bool start_writing();

    TimeSource& clock_;
    std::string root_;
    UniqueFd folder_;  // the tenant's
    std::uint64_t limit_bytes_ = 0;

    struct Waiting {
        ImageHash hash;
        ImageBytes image;
    };
    Mutex mutex_;
    Condition changed_;
    std::deque<Waiting> waiting_ GP_GUARDED_BY(mutex_);  // the first one is being written
    std::uint64_t waiting_bytes_ GP_GUARDED_BY(mutex_) = 0;
    bool stopping_ GP_GUARDED_BY(mutex_) = false;
    bool complained_ = false;     // used by the writing thread, as is since_trim_
    std::size_t since_trim_ = 0;  // files
    std::thread thread_;
};

}  // namespace gpupool::worker
