// Sleeping to a moment, without being late and without taking a processor for it.
//
// The kernel wakes a sleeper late, by a few microseconds to more than fifty, as the machine is. So the last of the time
// is looked away where processors are to spare: twice as much of it as the kernel has lately been late.
//
// Ownership: none. Threads: a Sleeper is used by one thread. Units: in the types. Errors: none.
#pragma once

#include <chrono>

#include "protocol/transport/connection.h"

namespace gpupool::network {

using Clock = transport::Clock;

class Sleeper {
  public:
    void until(Clock::time_point when) noexcept;
    // Asks `look` until it says true, for at most `budget`, with naps between that leave it awake in `in_time` after
    // what it looks for came; its last answer.
    template <class Condition>
    bool poll_for(Condition condition, Clock::duration budget, Clock::duration in_time) {
        for (const auto begin = Clock::now(); Clock::now() - begin < budget; nap(in_time / 2 - lateness_)) {
            if (condition()) return true;
        }
        return condition();
    }

  private:
    static constexpr std::chrono::microseconds kLatest{60}, kLeastNap{5};
    static constexpr int kSmooth = 8, kForget = 64;

    // Wakes a little after `when`.
    void sleep_until(Clock::time_point when) noexcept;
    void nap(Clock::duration time) noexcept;
    // No sleep, since the kernel is too late for it: that is tried again after a while.
    void forget() noexcept { lateness_ -= lateness_ / kForget; }

    Clock::duration lateness_{0};  // of the kernel, smoothed
};

}  // namespace gpupool::network
