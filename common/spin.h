// Waiting that looks for a moment before it sleeps.
//
// Being woken costs five to seventy microseconds, more than all else in a round trip on one host; looking costs a
// processor.
// So it is done only where processors are to spare, for a short while, and ever more rarely where it did not help; and
// by nobody in the process for a while after somebody else needed the processor.
//
// Ownership: one Spin per place that waits. Threads: a Spin is used by one thread at a time; Contention, any.
// Errors: of the setting alone.
#pragma once

#include <atomic>
#include <chrono>
#include <string_view>

#include "common/result.h"

namespace gpupool {

// Whether this process has processors to spare for looking: four or more, as processors_allowed() counts them, or as
// many as GPUPOOL_SPIN says. GPUPOOL_SPIN=always or =never decides it otherwise.
bool spinning_pays() noexcept;
// Refuses what GPUPOOL_SPIN cannot be, with its name.
Status check_spin_setting(std::string_view value);

// Tells the processor that this is a loop that only looks.
inline void spin_pause() noexcept {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Whether other threads compete for the processors that this process looks with. Who finds that it was suspended while
// it looked notes it; then nobody looks for a while, for ever longer where it goes on.
class Contention {
  public:
    using TimePoint = std::chrono::steady_clock::time_point;
    enum class Matters { yes, no };  // no: nothing is ever noted
    explicit Contention(Matters matters = Matters::yes) noexcept : matters_(matters) {}
    static constexpr std::chrono::milliseconds kShortest{1}, kLongest{256};
    // What is noted within this many times the last while is of the same contention.
    static constexpr int kGoesOnWithin = 4;

    [[nodiscard]] bool lasts(TimePoint now) const noexcept {
        return now.time_since_epoch().count() < until_.load(std::memory_order_relaxed);
    }
    void note(TimePoint now) noexcept;
    // PollResult at `before` and not again until now: notes it where the calling thread was suspended meanwhile.
    bool note_poll(TimePoint before, TimePoint now) noexcept {
        return now - before > kOthersTurn && note_suspended(now);
    }

  private:
    using Ticks = std::chrono::steady_clock::rep;
    // A few looks take far less; this is the processor given to another thread, or a lock that somebody had.
    static constexpr std::chrono::microseconds kOthersTurn{500};
    bool note_suspended(TimePoint now) noexcept;

    const Matters matters_;
    std::atomic<Ticks> until_{0}, while_{0};
};

// This process's; with GPUPOOL_SPIN=always it does not matter.
Contention& contention() noexcept;

class Spin {
  public:
    explicit Spin(Contention& contention = gpupool::contention()) noexcept : contention_(contention) {}

    // Asks `look` until it says true, for at most `budget`; its last answer.
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
    // A round trip through a network of one site, or a short kernel's time: a few wakings' worth.
    static constexpr std::chrono::microseconds kBudget{200};
    static constexpr int kPollsPerClock = 8;
    static constexpr unsigned kMaxMisses = 6;  // then one wait in 63 begins with looking

    bool worth_it() noexcept {
        if (skip_ != 0) {
            --skip_;
            return false;
        }
        return spinning_pays();
    }

    Contention& contention_;
    unsigned misses_ = 0;  // in a row
    unsigned skip_ = 0;    // waits that sleep at once
};

}  // namespace gpupool
