// Code images of earlier sessions, on disk: ROOT/TENANT/HASH, a file for each, named by the SHA-256 of its content.
//
// One tenant's images are never looked for by another's session: to know a hash is no proof of having the content.
// Content is checked against its name on every use: what was damaged or forged is removed and counts as not there. The
// writer makes a file under another name and renames it, so that no reader sees half of one; nothing is forced to the
// disk, since a file that a crash damages is found out. Sessions may use a store at the same time, as may daemons.
//
// Above its limit, which holds for all tenants together, the tenant that holds most gives first, and of its images the
// one that was used longest ago (a file's modification time is that of its last use). What counts is what a file takes
// of the disk, at least kLeastFileBytes; and nobody keeps more than kMaxFiles.
//
// Ownership: a thread of its own writes. Threads: any. Errors: a store that cannot be opened says why; one that cannot
//   be written later says so once in the log, and what it has is still found.
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
    static constexpr std::uint64_t kMaxWaitingBytes = 1ull << 30;  // to be written; what comes on top is not kept

    static constexpr std::uint64_t kLeastFileBytes = 4096;
    static constexpr std::size_t kMaxFiles = 16u << 10;  // of a tenant
    static constexpr std::size_t kTrimEvery = 1024;      // files that were written, should the writing never pause

    // `root` is there; the tenant's folder in it is made.
    static Result<std::unique_ptr<ImageStore>> open(const std::string& root, const std::string& tenant,
                                                    std::uint64_t limit_bytes);
    ~ImageStore();
    ImageStore(const ImageStore&) = delete;
    ImageStore& operator=(const ImageStore&) = delete;

    // Null: not there.
    [[nodiscard]] ImageBytes find(const ImageHash& hash);

    // Writes it, later. Its content must be known to be what `hash` says.
    void keep(const ImageHash& hash, ImageBytes image);

    // Waits until all is written, but not for longer than `timeout`.
    void finish(std::chrono::milliseconds timeout);

  private:
    ImageStore() = default;
    void run();
    Status write(const ImageHash& hash, std::span<const std::byte> content);
    void trim();
    bool start_writing();

    std::string root_;
    UniqueFd folder_;  // the tenant's
    std::uint64_t limit_bytes_ = 0;

    struct Waiting {
        ImageHash hash;
        ImageBytes image;
    };
    Mutex mutex_;
    Condition changed_;
    std::deque<Waiting> waiting_ GP_GUARDED_BY(mutex_);  // the first one is being written; guarded by mutex_
    std::uint64_t waiting_bytes_ GP_GUARDED_BY(mutex_) = 0;
    bool stopping_ GP_GUARDED_BY(mutex_) = false;
    bool complained_ = false;     // these two are the writing thread's
    std::size_t since_trim_ = 0;  // files
    std::thread thread_;
};

}  // namespace gpupool::worker
