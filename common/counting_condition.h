// A condition variable that knows whether a thread waits on it. Waking a thread is a system call, and no lock of the
// call path is held across a system call. A notifier that sees that there is no waiter keeps its lock and skips the
// call.
//
// Threads: any; wait() and has_waiters() are called with the mutex held that guards the waited-for condition.
#pragma once

#include <cstddef>
#include <utility>

#include "common/clock.h"
#include "common/mutex.h"

namespace gpupool {

class CountingCondition {
  public:
    [[nodiscard]] bool has_waiters() const noexcept { return waiting_ != 0; }
    template <class Predicate>
    void wait(UniqueLock& lock, Predicate ready) {
        ++waiting_;
        changed_.wait(lock, std::move(ready));
        --waiting_;
    }
    template <class Predicate>
    void wait_for(UniqueLock& lock, TimeSource::Duration timeout, Predicate ready,
                  TimeSource& clock = TimeSource::system()) {
        ++waiting_;
        clock.wait_for(changed_, lock, timeout, std::move(ready));
        --waiting_;
    }
    void notify_all() noexcept { changed_.notify_all(); }

  private:
    std::size_t waiting_ = 0;
    Condition changed_;
};

}  // namespace gpupool
