#include "server/worker/dispatch/helpers.h"

#include <system_error>
#include <utility>

#include "common/log.h"

namespace gpupool::worker {

Helpers::Helpers(Inbox& inbox, Tracer* tracer, std::size_t max_threads)
    : inbox_(inbox), tracer_(tracer), max_threads_(max_threads) {
    threads_.emplace_back([this] { loop(); });
}

Helpers::~Helpers() {
    stop();
    for (std::thread& thread : threads_) {
        thread.join();
    }
}

void Helpers::run(std::function<void()> work, std::function<void()> done) {
    if (tracer_ != nullptr && tracer_->on()) [[unlikely]] {
        tracer_->wrap(work, done);
    }
    {
        const Lock lock(mutex_);
        jobs_.push_back({std::move(work), std::move(done)});
        if (idle_ < jobs_.size() && threads_.size() < max_threads_) {
            start_another();
        }
    }
    changed_.notify_one();
}

// Called with the lock held.
void Helpers::start_another() {
    try {
        threads_.emplace_back([this] { loop(); });
    } catch (const std::system_error& error) {
        if (!std::exchange(complained_, true)) {
            log::warn("cannot start another helper thread, {} threads share the calls that may block: {}",
                      threads_.size(), error.what());
        }
    }
}

void Helpers::stop() {
    const Lock lock(mutex_);
    stopping_ = true;
    jobs_.clear();
    changed_.notify_all();
}

void Helpers::loop() {
    UniqueLock lock(mutex_);
    while (true) {
        ++idle_;
        changed_.wait(lock, [&]() GP_REQUIRES(mutex_) { return stopping_ || !jobs_.empty(); });
        --idle_;
        if (jobs_.empty()) {
            return;
        }
        Job job = std::move(jobs_.front());
        jobs_.pop_front();
        lock.unlock();
        job.work();
        inbox_.post(std::move(job.done));
        job = {};  // destroys the captures without the lock: their destructors may do work
        lock.lock();
    }
}

}  // namespace gpupool::worker
