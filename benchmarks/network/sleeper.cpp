#include "benchmarks/network/sleeper.h"

#include <algorithm>
#include <cerrno>
#include <ctime>

#include "common/spin.h"

namespace gpupool::network {

void Sleeper::sleep_until(Clock::time_point when) noexcept {
    const auto since = std::chrono::duration_cast<std::chrono::nanoseconds>(when.time_since_epoch()).count();
    const timespec at{since / 1'000'000'000, since % 1'000'000'000};
    while (::clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, nullptr) == EINTR) {
    }
    lateness_ += (std::min<Clock::duration>(Clock::now() - when, kLatest) - lateness_) / kSmooth;
}

void Sleeper::until(Clock::time_point when) noexcept {
    const bool may_spin = spinning_pays();
    const auto sleep_to = may_spin ? when - 2 * lateness_ : when;
    if (Clock::now() < sleep_to) {
        sleep_until(sleep_to);
    } else {
        forget();
    }
    while (may_spin && Clock::now() < when) {
        spin_pause();
    }
}

void Sleeper::nap(Clock::duration time) noexcept {
    if (time < kLeastNap) {
        forget();
        spin_pause();
        return;
    }
    sleep_until(Clock::now() + time);
}

}  // namespace gpupool::network
