// A condition variable that knows whether anybody waits. Waking is a system call, and no lock of the call path is held
// across one; with this, who has nobody to wake need not give its lock back, and take it again, to find that out.
//
// Threads: any; wait() and has_waiters() with the mutex held that guards what is waited for.
#pragma once

#include <chrono>
#include <cstddef>
#include <utility>

#include "common/mutex.h"

namespace gpupool {

class CountingCondition {
  public:
    [[nodiscard]] bool has_waiters() const noexcept { return waiting_ != 0; }
    template <class Predicate>
    void wait(UniqueLock& lock, Predicate over) {
        ++waiting_;
        changed_.wait(lock, std::move(over));
        --waiting_;
    }
    template <class Predicate>
    void wait_for(UniqueLock& lock, std::chrono::milliseconds timeout, Predicate over) {
        ++waiting_;
        changed_.wait_for(lock, timeout, std::move(over));
        --waiting_;
    }
    void notify_all() noexcept { changed_.notify_all(); }

  private:
    std::size_t waiting_ = 0;
    Condition changed_;
};

}  // namespace gpupool
