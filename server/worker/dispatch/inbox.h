// What waits for the dispatcher: frames from the receiving thread, and things other threads want done on it.
//
// Bounded in bytes for frames: the receiving thread waits when the dispatcher does not keep up, which slows the client
// down, but not while the dispatcher itself waits until the client acknowledges something, which that very thread has
// to read: then it takes far more, if not without end. Jobs from helper threads are few and never wait.
//
// Threads: any thread posts, the dispatcher takes.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "common/mutex.h"
#include "common/spin.h"
#include "server/worker/dispatch/command.h"

namespace gpupool::worker {

class Inbox {
  public:
    static constexpr std::size_t kMaxFrameBytes = 16u << 20;

    // False when closed. Never waits where the dispatcher itself receives.
    bool push(std::shared_ptr<Frame> frame);
    void post(std::function<void()> job);
    // Something outside changed that held work may wait for.
    void poke();
    void close();
    // A thread waits, or does so no longer, for what the receiving thread has yet to read.
    void let_through(bool through);

    struct Batch {
        std::vector<std::shared_ptr<Frame>> frames;
        std::vector<std::function<void()>> jobs;
        bool poked = false;
        [[nodiscard]] bool empty() const { return frames.empty() && jobs.empty() && !poked; }
        // But keeps its memory.
        void clear() {
            frames.clear();
            jobs.clear();
            poked = false;
        }
    };
    // The calling thread is the dispatcher.
    void serve_here();
    // What there is, without waiting. The memory of `used`, which is empty, is used again.
    Batch take(Batch used);
    Batch take() { return take(Batch()); }
    // Would take() bring anything?
    [[nodiscard]] bool has_news() const { return news_.load(std::memory_order_acquire); }
    // Looks for as long as that pays, and calls `also` all the time; true when there is something.
    template <class Also>
    bool poll(Also&& also) {
        return spin_.until(
            [&] {
                also();
                return has_news();
            },
            kLookForNewsFor);
    }
    // Sleeps until there is something, or for `timeout`.
    void wait(std::chrono::microseconds timeout);
    void wait();
    [[nodiscard]] bool closed() const;

  private:
    // A program often does something else for a moment between its calls, and to wake this thread, and the receiving
    // one before it, costs more than all else that becomes of a call.
    static constexpr std::chrono::milliseconds kLookForNewsFor{2};

    void tell();
    [[nodiscard]] bool ready() const GP_REQUIRES(mutex_) {
        return poked_ || closed_ || !frames_.empty() || !jobs_.empty();
    }

    mutable AdaptiveMutex mutex_;
    Condition not_empty_, not_full_;
    std::vector<std::shared_ptr<Frame>> frames_ GP_GUARDED_BY(mutex_);
    std::vector<std::function<void()>> jobs_ GP_GUARDED_BY(mutex_);
    std::size_t bytes_ GP_GUARDED_BY(mutex_) = 0;
    int letting_through_ GP_GUARDED_BY(mutex_) = 0;  // threads that wait for the receiving one
    std::thread::id dispatcher_;
    // Something came since the last take(). PollResult at without the mutex, and set after it was released, since
    // whoever sees it takes the mutex next.
    std::atomic<bool> news_{false};
    Spin spin_;  // the dispatcher's
    bool poked_ GP_GUARDED_BY(mutex_) = false;
    bool closed_ GP_GUARDED_BY(mutex_) = false;
};

}  // namespace gpupool::worker
