// Threads for driver calls that may block: module loading, unloading, context creation, limits.
//
// Each job makes its driver call on a helper thread, then its `done` runs on the dispatcher. The constructor starts one
// thread; run() starts more as needed, up to a limit. When all are busy, or no further thread can be started, jobs
// queue in order.
//
// Threads: run() and stop() are called by the dispatcher.
// Errors: the constructor throws std::system_error if it cannot start the first thread.
#pragma once

#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "common/mutex.h"
#include "server/worker/dispatch/inbox.h"
#include "server/worker/tracing/tracer.h"

namespace gpupool::worker {

class Helpers {
  public:
    static constexpr std::size_t kMaxThreads = 16;

    explicit Helpers(Inbox& inbox, Tracer* tracer = nullptr, std::size_t max_threads = kMaxThreads);
    ~Helpers();

    // Runs `work` on a helper thread, then `done` on the dispatcher.
    void run(std::function<void()> work, std::function<void()> done);
    // Drops the jobs that have not begun. Called when the session ends.
    void stop();

  private:
    void start_another();
    void loop();

    struct Job {
        std::function<void()> work, done;
    };
    Inbox& inbox_;
    Tracer* const tracer_;
    const std::size_t max_threads_;
    Mutex mutex_;
    Condition changed_;
    std::deque<Job> jobs_ GP_GUARDED_BY(mutex_);
    std::size_t idle_ GP_GUARDED_BY(mutex_) = 0;
    bool stopping_ GP_GUARDED_BY(mutex_) = false;
    bool complained_ = false;  // dispatcher only, like threads_
    std::vector<std::thread> threads_;
};

}  // namespace gpupool::worker
