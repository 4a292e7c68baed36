// Waiting that looks for a moment before it sleeps.
//
// Being woken costs five to seventy microseconds, more than all else in a round trip on one host; looking costs a
// processor.
// So it is done only where processors are to spare, for a short while, and ever more rarely where it did not help, or
// where somebody else needed the processor meanwhile.
//
// Ownership: one Spin per place that waits. Threads: a Spin is used by one thread at a time. Errors: none.
#pragma once

#include <chrono>

namespace gpupool {

// Whether this process has processors to spare for looking: four or more, as processors_allowed() counts them.
// GPUPOOL_SPIN=always or =never decides it otherwise.
bool spinning_pays() noexcept;

// Tells the processor that this is a loop that only looks.
inline void spin_pause() noexcept {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

class Spin {
  public:
    // Asks `look` until it says true, for at most `budget`; its last answer.
    template <class Look>
    bool until(Look&& look, std::chrono::microseconds budget = kBudget) {
        if (look()) {
            return true;
        }
        if (!worth_it()) {
            return false;
        }
        auto now = std::chrono::steady_clock::now();
        const auto end = now + budget;
        do {
            const auto before = now;
            for (int i = 0; i < kLooksPerClock; ++i) {
                spin_pause();
                if (look()) {
                    misses_ = 0;
                    return true;
                }
            }
            now = std::chrono::steady_clock::now();
            if (now - before > kOthersTurn) {
                misses_ = kMostMisses - 1;
                break;
            }
        } while (now < end);
        misses_ = misses_ < kMostMisses ? misses_ + 1 : misses_;
        skip_ = (1u << misses_) - 2;
        return false;
    }

  private:
    // A round trip through a network of one site, or a short kernel's time: a few wakings' worth.
    static constexpr std::chrono::microseconds kBudget{200};
    static constexpr int kLooksPerClock = 8;
    // A few looks take far less; this is the processor given to another thread.
    static constexpr std::chrono::microseconds kOthersTurn{500};
    static constexpr unsigned kMostMisses = 6;  // then one wait in 63 begins with looking

    bool worth_it() noexcept {
        if (skip_ != 0) {
            --skip_;
            return false;
        }
        return spinning_pays();
    }

    unsigned misses_ = 0;  // in a row
    unsigned skip_ = 0;    // waits that sleep at once
};

}  // namespace gpupool
