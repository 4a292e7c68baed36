// Captures what kernels print, and what the driver reports of failed assertions. The driver writes both to the
// process's standard output and standard error when something synchronizes. Here these are pipes, and their content is
// sent to the client before the reply of the call that synchronized.
//
// A thread empties the pipe, so that the driver never blocks on it. Its memory is bounded; further text is dropped with
// a note, as the driver does with its own buffer.
//
// Ownership: one object per descriptor, which it takes over.
// Threads: take() and has_text() any.
#pragma once

#include <atomic>
#include <cstddef>
#include <string>

#include "common/mutex.h"
#include "common/result.h"
#include "common/unique_fd.h"

namespace gpupool::worker {

class DeviceOutput {
  public:
    static constexpr std::size_t kMaxBytes = 4u << 20;

    // Replaces `descriptor` by the pipe. Call once, before the driver is loaded.
    Status capture(int descriptor);

    // Returns everything that was written up to now.
    std::string take();
    // Has the thread read anything that was not taken yet? Text written a moment ago may not count yet.
    [[nodiscard]] bool has_text() const { return has_text_.load(std::memory_order_relaxed); }

  private:
    void empty_locked() GP_REQUIRES(mutex_);
    void run();

    UniqueFd pipe_;
    Mutex mutex_;
    std::string text_ GP_GUARDED_BY(mutex_);
    std::size_t dropped_bytes_ GP_GUARDED_BY(mutex_) = 0;
    std::atomic<bool> has_text_{false};
};

}  // namespace gpupool::worker
