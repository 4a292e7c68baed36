// The dispatcher's queue: frames from the receiving thread, and jobs that other threads want run on the dispatcher.
//
// Frames are bounded in bytes (kMaxFrameBytes). When the queue is full the receiving thread blocks, which throttles the
// client. While a thread is itself blocked until the client acknowledges something (let_through()), the receiving
// thread must go on to read that acknowledgement, so it may queue far more, but not without limit. Jobs from helper
// threads are few and never block.
//
// Threads: any thread may push and post; take(), poll() and wait() are the dispatcher's.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "common/clock.h"
#include "common/mutex.h"
#include "common/spin.h"
#include "server/worker/dispatch/command.h"

namespace gpupool::worker {

class Inbox {
  public:
    static constexpr std::size_t kMaxFrameBytes = 16u << 20;

    explicit Inbox(TimeSource& clock = TimeSource::system()) : clock_(clock) {}

    // False if the inbox is closed. Never blocks when the dispatcher itself receives.
    bool push(std::shared_ptr<Frame> frame);
    void post(std::function<void()> job);
    // Wakes the dispatcher: queued work may have become ready, for example because data arrived.
    void wake();
    void close();
    // Called with true when a thread begins to wait for a frame that the receiving thread has not read yet, with false
    // when it has stopped waiting.
    void let_through(bool through);

    struct Batch {
        std::vector<std::shared_ptr<Frame>> frames;
        std::vector<std::function<void()>> jobs;
        bool woken = false;
        [[nodiscard]] bool empty() const { return frames.empty() && jobs.empty() && !woken; }
        // Empties the batch but keeps its memory.
        void clear() {
            frames.clear();
            jobs.clear();
            woken = false;
        }
    };
    // Bytes of the frames that were taken and whose commands are yet to be dispatched; the dispatcher counts them.
    std::size_t bytes_to_come = 0;
    // Have many commands arrived that are yet to be issued?
    [[nodiscard]] bool more_to_come() const { return bytes_to_come >= kMuchToComeBytes; }
    // Makes the calling thread the dispatcher.
    void serve_here();
    // Returns what is queued, without blocking. Reuses the memory of `used`, which must be empty.
    Batch take(Batch used);
    Batch take() { return take(Batch()); }
    // Would take() return anything?
    [[nodiscard]] bool has_news() const { return news_.load(std::memory_order_acquire); }
    // Spins for as long as that pays and calls `also` in every iteration; true once there is something to take.
    template <class Also>
    bool poll(Also&& also) {
        return spin_.until(
            [&] {
                also();
                return has_news();
            },
            kSpinFor);
    }
    // Sleeps until there is something to take, or until `timeout` has passed.
    void wait(std::chrono::microseconds timeout);
    void wait();

  private:
    // How long poll() spins. A program often pauses for a moment between its calls, and waking this thread, and before
    // it the receiving thread, costs more than the rest of the way of a call.
    static constexpr std::chrono::milliseconds kSpinFor{2};

    static constexpr std::size_t kMuchToComeBytes = 4096;  // about twenty launches

    void notify();
    [[nodiscard]] bool ready() const GP_REQUIRES(mutex_) {
        return woken_ || closed_ || !frames_.empty() || !jobs_.empty();
    }

    TimeSource& clock_;
    mutable AdaptiveMutex mutex_;
    Condition not_empty_, not_full_;
    std::vector<std::shared_ptr<Frame>> frames_ GP_GUARDED_BY(mutex_);
    std::vector<std::function<void()>> jobs_ GP_GUARDED_BY(mutex_);
    std::size_t bytes_ GP_GUARDED_BY(mutex_) = 0;
    int letting_through_ GP_GUARDED_BY(mutex_) = 0;  // threads that wait for the receiving thread
    std::thread::id dispatcher_;
    // Something was queued since the last take(). Polled without the mutex. Set after the mutex is released, because
    // the thread that sees it takes the mutex next.
    std::atomic<bool> news_{false};
    Spin spin_;  // the dispatcher's
    bool woken_ GP_GUARDED_BY(mutex_) = false;
    bool closed_ GP_GUARDED_BY(mutex_) = false;
};

}  // namespace gpupool::worker
