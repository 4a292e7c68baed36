// What kernels print, and what the driver says of a failed assertion. The driver writes it to the process's standard
// output and standard error when something synchronizes; here these are pipes, and their content goes to the client
// before the reply of the call that synchronized.
//
// A thread empties the pipe, so that the driver never waits for it; what it holds is bounded, and the rest is dropped
// with a note, as the driver does with its own buffer.
//
// Threads: take() and has_text() any. Ownership: one per descriptor, which it takes over.
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

    // From here on `descriptor` is the pipe. Call once, before the driver is loaded.
    Status capture(int descriptor);

    // Everything that was written up to now.
    std::string take();
    // Has anything been read that nobody took? What was written a moment ago need not have been.
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
