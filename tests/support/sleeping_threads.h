// Events for tests of code that offers none: a thread, or every other thread of the process, sleeps in the kernel. A
// test that waits for them, and then checks that nothing has happened, need not sleep.
//
// Threads: any. Errors: false after kSleepLimit of real time.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>

namespace gpupool::test {

inline constexpr std::chrono::seconds kSleepLimit{30};

// Waits until every other thread of this process sleeps, so that none is going to do anything until it is woken or its
// timeout ends. Threads that spin or sleep for short times only must have ended.
[[nodiscard]] bool wait_until_others_sleep();

// A thread that runs `body` and of which a test can tell whether it blocks.
class BlockingThread {
  public:
    explicit BlockingThread(std::function<void()> body);
    ~BlockingThread() { join(); }
    BlockingThread(const BlockingThread&) = delete;
    BlockingThread& operator=(const BlockingThread&) = delete;

    // Waits until the thread sleeps in the kernel or `body` has returned. True: it sleeps.
    [[nodiscard]] bool blocks() const;
    void join() {
        if (thread_.joinable()) {
            thread_.join();
        }
    }

  private:
    std::atomic<pid_t> id_{0};
    std::atomic<bool> returned_{false};
    std::thread thread_;  // last: it uses the others
};

}  // namespace gpupool::test
