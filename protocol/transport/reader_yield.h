// Coordinates the reader with threads that poll for data themselves (Connection::begin_polling()): the reader yields to
// them, sleeps while they go on, and is woken when the last of them has ended.
//
// Threads: begin() and end(), any; the others, only the reader.
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
    // A polling thread may stop polling without ending, even because it waits for data that has arrived here. So the
    // reader never yields for longer than this.
    static constexpr std::chrono::milliseconds kMaxYield{1};

    [[nodiscard]] bool works() const noexcept { return wake_.get() >= 0; }
    // Readable when the reader is to wake; woken() resets it.
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
    // `arrange` returns whether the sleeping reader will notice new data without being woken now.
    template <class Arrange>
    void end(Arrange arrange) noexcept {
        const Lock lock(mutex_);
        const unsigned left = pollers_.load(std::memory_order_relaxed) - 1;
        pollers_.store(left, std::memory_order_release);
        if (left != 0 || !asleep_ || arrange()) {
            return;
        }
        const std::uint64_t one = 1;
        (void)!::write(wake_.get(), &one, sizeof(one));
    }

    // Spins until `readable`, or until spinning no longer pays: then returns false, if there is neither data nor a
    // thread that polls.
    template <class Readable>
    bool spin(Readable readable) {
        for (;;) {
            const std::uint32_t polls_before = polls_.load(std::memory_order_relaxed);
            const auto others = [&] { return polls_.load(std::memory_order_relaxed) != polls_before; };
            const auto mine = [&] { return pollers_.load(std::memory_order_acquire) == 0 && readable(); };
            if (foreign_polls_ >= kPollsUntilSleep) {
                std::this_thread::sleep_for(kSleepTime);
                if (!others()) {
                    foreign_polls_ = 0;
                }
            } else if (!spin_.until([&] { return mine() || others(); })) {
                return false;
            } else if (others()) {
                note_others();
            }
            if (mine()) {
                return true;
            }
        }
    }
    // The reader is about to sleep. `prepare(alone)` returns false if it must not; `alone` is whether no thread polls.
    // The reader counts as asleep until wake_up(), whose `done` runs with the mutex held, as `prepare` does.
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
    // Counts polls of other threads as one series as long as each follows shortly after the previous one: the reader
    // would find nothing in between.
    void note_others() noexcept {
        const auto now = std::chrono::steady_clock::now();
        foreign_polls_ = now - last_foreign_poll_ < kSleepTime ? foreign_polls_ + 1 : 1;
        last_foreign_poll_ = now;
    }

    // After this many polls of other threads in a series, the reader sleeps for kSleepTime at a time while they go on.
    // Spinning meanwhile would cost a processor, and would slow them down, because they write the counter that it
    // reads.
    static constexpr unsigned kPollsUntilSleep = 64;
    static constexpr std::chrono::microseconds kSleepTime{50};

    Mutex mutex_;
    std::atomic<unsigned> pollers_{0};     // read without the mutex
    std::atomic<std::uint32_t> polls_{0};  // how many have begun; read without the mutex
    bool asleep_ GP_GUARDED_BY(mutex_) = false;
    const UniqueFd wake_{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    Spin spin_;                   // used by the reader only, as the next two
    unsigned foreign_polls_ = 0;  // in a row
    std::chrono::steady_clock::time_point last_foreign_poll_{};
};

}  // namespace gpupool::transport
