// A clock for unit tests whose time moves only when the test advances it. It also lets the test wait for the event that
// a thread waits, so that no test has to sleep to see that nothing happens.
//
// Ownership: outlives the objects that it was passed to. Threads: any; advance() without the mutexes that waiting
// threads wait with. Errors: wait_for_waiters() and wait_for_wait_until() return false after kLimit of real time.
#pragma once

#include <chrono>
#include <cstddef>
#include <list>

#include "common/clock.h"
#include "common/mutex.h"

namespace gpupool::test {

class ManualClock final : public TimeSource {
  public:
    static constexpr std::chrono::seconds kLimit{30};

    // Begins at the system's time, since code under test may compare it with times of spin loops.
    ManualClock() : now_(std::chrono::steady_clock::now()) {}

    [[nodiscard]] TimePoint now() const noexcept override;
    using TimeSource::wait_until;
    bool wait_until(Condition& condition, UniqueLock& lock, TimePoint end) override;

    // Wakes every thread whose wait ends at the new time or before, and returns when these waits have ended.
    void advance(Duration time);
    // Waits until at least `count` threads wait through this clock, with or without a limit. A thread that was notified
    // counts until it runs again.
    [[nodiscard]] bool wait_for_waiters(std::size_t count);
    // Waits until a thread waits whose time will be over after `left`.
    [[nodiscard]] bool wait_for_wait_until(Duration left);

  private:
    struct Waiter {
        Condition* condition;
        TimePoint end;
    };
    template <class Predicate>
    bool wait_for_change(Predicate over);

    // Lock order: after the mutexes that threads wait with.
    mutable Mutex mutex_;
    Condition changed_;  // a thread has begun to wait
    TimePoint now_ GP_GUARDED_BY(mutex_);
    std::list<Waiter> waiters_ GP_GUARDED_BY(mutex_);
};

}  // namespace gpupool::test
