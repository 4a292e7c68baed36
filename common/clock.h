// Where the worker and the client read the time, and through what they wait for a limited time.
//
// A class that needs the time takes a TimeSource by its constructor or its options. The default is the system's clock.
// A unit test passes a clock that it advances itself (tests/support/manual_clock.h); the same clock tells it which
// threads wait, so that no test needs to sleep. For this reason classes that have a TimeSource also wait through it
// where they wait without a limit.
//
// These read std::chrono::steady_clock themselves, and a test cannot advance their time:
// - spin loops (common/spin.h), channels, lanes and connections, and so the deadlines that they are given, for example
//   when a session or a lane connects;
// - the client's tracing, whose times must be those that channels and lanes report;
// - the client's pause after a failed connection attempt (client/core/session/runtime.cpp), which is the process's;
// - the supervision link and the gpupool command, which sleep in poll() or wait for processes.
//
// The daemon's timers use a TimeSource's now(), and Asio's timers to wait for it (server/daemon/loop.h).
//
// Ownership: a TimeSource outlives the objects that it was passed to. Threads: any. Errors: none.
#pragma once

#include <chrono>
#include <utility>

#include "common/mutex.h"

namespace gpupool {

class TimeSource {
  public:
    using Duration = std::chrono::steady_clock::duration;
    using TimePoint = std::chrono::steady_clock::time_point;
    static constexpr TimePoint kNever = TimePoint::max();  // as the end of a wait: no limit

    // The system's monotonic clock.
    static TimeSource& system();

    TimeSource() = default;
    virtual ~TimeSource() = default;
    TimeSource(const TimeSource&) = delete;
    TimeSource& operator=(const TimeSource&) = delete;

    [[nodiscard]] virtual TimePoint now() const noexcept = 0;

    // As Condition::wait_until(). False: the time is over.
    virtual bool wait_until(Condition& condition, UniqueLock& lock, TimePoint end) = 0;
    template <class Predicate>
    bool wait_until(Condition& condition, UniqueLock& lock, TimePoint end,
                    Predicate over) GP_NO_THREAD_SAFETY_ANALYSIS {
        while (!over()) {
            if (!wait_until(condition, lock, end)) {
                return over();
            }
        }
        return true;
    }
    template <class Predicate>
    bool wait_for(Condition& condition, UniqueLock& lock, Duration timeout,
                  Predicate over) GP_NO_THREAD_SAFETY_ANALYSIS {
        return wait_until(condition, lock, now() + timeout, std::move(over));
    }
    template <class Predicate>
    void wait(Condition& condition, UniqueLock& lock, Predicate over) GP_NO_THREAD_SAFETY_ANALYSIS {
        wait_until(condition, lock, kNever, std::move(over));
    }
    void sleep_for(Duration time);
};

}  // namespace gpupool
