// Spins for a short time before the caller sleeps.
//
// Waking a thread costs 5 to 70 microseconds, more than everything else in a round trip on one host; spinning costs a
// processor. So a thread spins only if the process has enough processors and only for a short time, and it spins less
// often where spinning did not help. Once a thread finds that other work needs the processors, no thread of the process
// spins for a while.
//
// Ownership: one Spin per place that waits. Threads: a Spin is used by one thread at a time; Contention, any. Errors:
// only check_spin_setting() reports any.
#pragma once

#include <atomic>
#include <chrono>
#include <string_view>

#include "common/result.h"

namespace gpupool {

// Whether this process has enough processors for spinning: at least four as processors_allowed() counts them, or at
// least the number in GPUPOOL_SPIN. GPUPOOL_SPIN=always and =never override that.
bool spinning_pays() noexcept;
// An error that names GPUPOOL_SPIN if `value` is not valid for it.
Status check_spin_setting(std::string_view value);

// Tells the processor that this is a spin loop.
inline void spin_pause() noexcept {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Whether other threads compete for the processors that this process spins on. A thread that was suspended while it
// spun notes it here; then no thread spins for a while, for longer and longer if it is noted again and again.
class Contention {
  public:
    using TimePoint = std::chrono::steady_clock::time_point;
    enum class Matters { yes, no };  // no: notes are ignored
    explicit Contention(Matters matters = Matters::yes) noexcept : matters_(matters) {}
    static constexpr std::chrono::milliseconds kShortest{1}, kLongest{256};
    // A note within this many times the length of the previous pause is taken as the same contention and doubles the
    // pause.
    static constexpr int kSameWithin = 4;

    [[nodiscard]] bool lasts(TimePoint now) const noexcept {
        return now.time_since_epoch().count() < until_.load(std::memory_order_relaxed);
    }
    void note(TimePoint now) noexcept;
    // To call between two polls, made at `before` and `now`: if the interval is long because the calling thread was
    // suspended, notes contention and returns true.
    bool note_poll(TimePoint before, TimePoint now) noexcept {
        return now - before > kSuspendedAfter && note_suspended(now);
    }

  private:
    using Ticks = std::chrono::steady_clock::rep;
    // A few polls take far less time. A longer interval means that the thread was suspended or waited for a lock.
    static constexpr std::chrono::microseconds kSuspendedAfter{500};
    bool note_suspended(TimePoint now) noexcept;

    const Matters matters_;
    std::atomic<Ticks> until_{0}, pause_{0};
};

// The process-wide instance. With GPUPOOL_SPIN=always it ignores notes.
Contention& contention() noexcept;

class Spin {
  public:
    explicit Spin(Contention& contention = gpupool::contention()) noexcept : contention_(contention) {}

    // Polls `condition` until it returns true, for at most `budget`; returns its last result. May poll only once: see
    // the top of this file.
    template <class Condition>
    bool until(Condition&& condition, std::chrono::microseconds budget = kBudget) {
        if (condition()) {
            return true;
        }
        if (!worth_it()) {
            return false;
        }
        auto now = std::chrono::steady_clock::now();
        if (contention_.lasts(now)) {
            return false;
        }
        const auto end = now + budget;
        do {
            const auto before = now;
            for (int i = 0; i < kPollsPerClock; ++i) {
                spin_pause();
                if (condition()) {
                    misses_ = 0;
                    contention_.note_poll(before, std::chrono::steady_clock::now());
                    return true;
                }
            }
            now = std::chrono::steady_clock::now();
            if (contention_.note_poll(before, now) || contention_.lasts(now)) {
                return false;
            }
        } while (now < end);
        misses_ = misses_ < kMaxMisses ? misses_ + 1 : misses_;
        skip_ = (1u << misses_) - 2;
        return false;
    }

  private:
    // About a round trip within one site's network, or a short kernel: worth a few wake-ups.
    static constexpr std::chrono::microseconds kBudget{200};
    static constexpr int kPollsPerClock = 8;
    static constexpr unsigned kMaxMisses = 6;  // then one wait in 63 spins

    bool worth_it() noexcept {
        if (skip_ != 0) {
            --skip_;
            return false;
        }
        return spinning_pays();
    }

    Contention& contention_;
    unsigned misses_ = 0;  // in a row
    unsigned skip_ = 0;    // how many of the next waits do not spin
};

}  // namespace gpupool
