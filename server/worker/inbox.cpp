#include "server/worker/inbox.h"

#include <utility>

namespace gpupool::worker {

bool Inbox::push(std::shared_ptr<Frame> frame) {
    std::unique_lock lock(mutex_);
    not_full_.wait(lock, [&] { return closed_ || bytes_ < kMaxFrameBytes; });
    if (closed_) {
        return false;
    }
    bytes_ += frame->bytes;
    frames_.push_back(std::move(frame));
    lock.unlock();
    not_empty_.notify_one();
    return true;
}

void Inbox::post(std::function<void()> job) {
    {
        const std::lock_guard lock(mutex_);
        jobs_.push_back(std::move(job));
    }
    not_empty_.notify_one();
}

void Inbox::poke() {
    {
        const std::lock_guard lock(mutex_);
        poked_ = true;
    }
    not_empty_.notify_one();
}

void Inbox::close() {
    {
        const std::lock_guard lock(mutex_);
        closed_ = true;
    }
    not_empty_.notify_all();
    not_full_.notify_all();
}

Inbox::Batch Inbox::take() {
    Batch batch;
    {
        const std::lock_guard lock(mutex_);
        batch.frames.swap(frames_);
        batch.jobs.swap(jobs_);
        batch.poked = std::exchange(poked_, false);
        bytes_ = 0;
    }
    if (!batch.frames.empty()) {
        not_full_.notify_all();
    }
    return batch;
}

void Inbox::wait(std::chrono::microseconds patience) {
    std::unique_lock lock(mutex_);
    not_empty_.wait_for(lock, patience, [&] { return ready(); });
}

void Inbox::wait() {
    std::unique_lock lock(mutex_);
    not_empty_.wait(lock, [&] { return ready(); });
}

bool Inbox::closed() const {
    const std::lock_guard lock(mutex_);
    return closed_;
}

}  // namespace gpupool::worker
