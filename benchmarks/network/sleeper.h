// Sleeps until a point in time, precisely and without keeping a processor busy.
//
// The kernel wakes a sleeper late, by a few microseconds to more than fifty, depending on the machine. So if the
// process has enough processors the sleeper spins at the end, for twice the kernel's recent lateness.
//
// Ownership: none. Threads: one per Sleeper. Units: in the types. Errors: none.
#pragma once

#include <chrono>

#include "protocol/transport/connection.h"

namespace gpupool::network {

using Clock = transport::Clock;

class Sleeper {
  public:
    void until(Clock::time_point when) noexcept;
    // Polls `condition` for at most `budget`, with short sleeps between polls, so that it notices the event within
    // `in_time`. Returns the condition's last value.
    template <class Condition>
    bool poll_for(Condition condition, Clock::duration budget, Clock::duration in_time) {
        for (const auto begin = Clock::now(); Clock::now() - begin < budget; nap(in_time / 2 - lateness_)) {
            if (condition()) {
                return true;
            }
        }
        return condition();
    }

  private:
    static constexpr std::chrono::microseconds kLatest{60}, kLeastNap{5};
    static constexpr int kSmooth = 8, kForget = 64;

    // Wakes a little after `when`.
    void sleep_until(Clock::time_point when) noexcept;
    void nap(Clock::duration time) noexcept;
    // Used when a sleep would end too late. The estimate decays, so that sleeping is tried again after a while.
    void forget() noexcept { lateness_ -= lateness_ / kForget; }

    Clock::duration lateness_{0};  // the kernel's, smoothed
};

}  // namespace gpupool::network
