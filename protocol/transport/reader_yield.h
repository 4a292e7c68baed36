// The thread that receives, beside others that look for what they wait for (Connection::begin_polling()): it gives way
// to them, dozes while they go on, and is woken when the last has ended.
//
// Threads: begin() and end() any; the others the receiving one's.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#include "common/mutex.h"
#include "common/spin.h"
#include "common/unique_fd.h"

namespace gpupool::transport {

class ReaderYield {
  public:
    // Who looks may be kept from it, even by waiting for what has arrived here: so nobody gives way for longer.
    static constexpr std::chrono::milliseconds kMaxYield{1};

    [[nodiscard]] bool works() const noexcept { return wake_.get() >= 0; }
    // Readable when the sleeper is to wake; woken() makes it unreadable.
    [[nodiscard]] int wake_descriptor() const noexcept { return wake_.get(); }
    void woken() noexcept {
        std::uint64_t count = 0;
        (void)!::read(wake_.get(), &count, sizeof(count));
    }

    void begin() noexcept {
        const Lock lock(mutex_);
        polls_.store(polls_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
        pollers_.store(pollers_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    }
    // `arrange` says whether the sleeper will learn of what arrives without being woken now.
    template <class Arrange>
    void end(Arrange arrange) noexcept {
        const Lock lock(mutex_);
        const unsigned left = pollers_.load(std::memory_order_relaxed) - 1;
        pollers_.store(left, std::memory_order_release);
        if (left != 0 || !asleep_ || arrange()) return;
        const std::uint64_t one = 1;
        (void)!::write(wake_.get(), &one, sizeof(one));
    }

    // False when nothing came for as long as it pays to stay awake: neither something to read nor somebody who looks.
    template <class Readable>
    bool spin(Readable readable) {
        for (;;) {
            const std::uint32_t looks = polls_.load(std::memory_order_relaxed);
            const auto others = [&] { return polls_.load(std::memory_order_relaxed) != looks; };
            const auto mine = [&] { return pollers_.load(std::memory_order_acquire) == 0 && readable(); };
            if (foreign_polls_ >= kPollsUntilDozing) {
                std::this_thread::sleep_for(kDozeTime);
                if (!others()) foreign_polls_ = 0;
            } else if (!spin_.until([&] { return mine() || others(); })) {
                return false;
            } else if (others()) {
                note_others();
            }
            if (mine()) return true;
        }
    }
    // The receiving thread is about to sleep: `prepare(alone)` returns false where it must not, and says whether
    // anybody looks beside it. Until wake_up(), whose `done` runs as `prepare` does, with the mutex held.
    template <class Prepare>
    bool fall_asleep(Prepare prepare) {
        const Lock lock(mutex_);
        asleep_ = prepare(pollers_.load(std::memory_order_relaxed) == 0);
        return asleep_;
    }
    template <class Done>
    void wake_up(Done done) {
        const Lock lock(mutex_);
        asleep_ = false;
        done();
    }

  private:
    // Looks of others count as long as one follows the other: what came between two of them they would have found.
    void note_others() noexcept {
        const auto now = std::chrono::steady_clock::now();
        foreign_polls_ = now - last_foreign_poll_ < kDozeTime ? foreign_polls_ + 1 : 1;
        last_foreign_poll_ = now;
    }

    // After so many looks of others who receives dozes while they go on, for so long at a time: to watch them costs a
    // processor, and costs them, who write what is watched.
    static constexpr unsigned kPollsUntilDozing = 64;
    static constexpr std::chrono::microseconds kDozeTime{50};

    Mutex mutex_;
    std::atomic<unsigned> pollers_{0};     // read without
    std::atomic<std::uint32_t> polls_{0};  // that have begun; read without
    bool asleep_ GP_GUARDED_BY(mutex_) = false;
    const UniqueFd wake_{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    Spin spin_;                   // the receiving thread's, with the next
    unsigned foreign_polls_ = 0;  // in a row
    std::chrono::steady_clock::time_point last_foreign_poll_{};
};

}  // namespace gpupool::transport
