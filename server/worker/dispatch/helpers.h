// Threads for driver calls that may block: module loading, unloading, context creation, limits.
//
// Each job makes its driver call on a helper thread, then its `done` runs on the dispatcher. One thread is there from
// the start, more are started as needed, up to a limit; beyond it, or where no more can be had, jobs wait in order.
//
// Threads: run() the dispatcher's. Errors: the constructor throws std::system_error where not even one thread can be
// had.
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

    explicit Helpers(Inbox& inbox, Tracer* tracer = nullptr);
    ~Helpers();

    // `work` on a helper thread, then `done` on the dispatcher.
    void run(std::function<void()> work, std::function<void()> done);
    // Forgets what has not begun; used when the session ends.
    void stop();

  private:
    void start_another();
    void loop();

    struct Job {
        std::function<void()> work, done;
    };
    Inbox& inbox_;
    Tracer* const tracer_;
    Mutex mutex_;
    Condition changed_;
    std::deque<Job> jobs_ GP_GUARDED_BY(mutex_);
    std::size_t idle_ GP_GUARDED_BY(mutex_) = 0;
    bool stopping_ GP_GUARDED_BY(mutex_) = false;
    bool complained_ = false;  // the dispatcher's, like threads_
    std::vector<std::thread> threads_;
};

}  // namespace gpupool::worker
