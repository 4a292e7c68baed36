#include "server/worker/dispatch/inbox.h"

#include <utility>

namespace gpupool::worker {

namespace {

// The limit while a thread waits for an acknowledgement (let_through()). Before it arrives, everything that the client
// sent earlier has to be queued: a few times wire::Limits::retained_bytes.
constexpr std::size_t kMaxLetThroughBytes = 256u << 20;

}  // namespace

bool Inbox::push(std::shared_ptr<Frame> frame) {
    UniqueLock lock(mutex_);
    clock_.wait(not_full_, lock, [&]() GP_REQUIRES(mutex_) {
        return closed_ || bytes_ < (letting_through_ > 0 ? kMaxLetThroughBytes : kMaxFrameBytes) ||
               std::this_thread::get_id() == dispatcher_;
    });
    if (closed_) {
        return false;
    }
    bytes_ += frame->bytes;
    frames_.push_back(std::move(frame));
    lock.unlock();
    notify();
    return true;
}

void Inbox::post(std::function<void()> job) {
    {
        const Lock lock(mutex_);
        jobs_.push_back(std::move(job));
    }
    notify();
}

void Inbox::wake() {
    {
        const Lock lock(mutex_);
        woken_ = true;
    }
    notify();
}

void Inbox::close() {
    {
        const Lock lock(mutex_);
        closed_ = true;
    }
    notify();
    not_full_.notify_all();
}

void Inbox::let_through(bool through) {
    {
        const Lock lock(mutex_);
        letting_through_ += through ? 1 : -1;
    }
    if (through) {
        not_full_.notify_all();
    }
}

void Inbox::notify() {
    news_.store(true, std::memory_order_release);
    not_empty_.notify_one();
}

void Inbox::serve_here() {
    const Lock lock(mutex_);
    dispatcher_ = std::this_thread::get_id();
}

Inbox::Batch Inbox::take(Batch used) {
    Batch batch = std::move(used);
    if (!has_news()) {
        return batch;
    }
    {
        const Lock lock(mutex_);
        news_.store(false, std::memory_order_relaxed);
        batch.frames.swap(frames_);
        batch.jobs.swap(jobs_);
        batch.woken = std::exchange(woken_, false);
        bytes_ = 0;
    }
    if (!batch.frames.empty()) {
        not_full_.notify_all();
    }
    return batch;
}

void Inbox::wait(std::chrono::microseconds timeout) {
    UniqueLock lock(mutex_);
    if (clock_.wait_for(not_empty_, lock, timeout, [&]() GP_REQUIRES(mutex_) { return ready(); })) {
        // the thread that queued it sets this only after it released the mutex
        news_.store(true, std::memory_order_relaxed);
    }
}

void Inbox::wait() {
    UniqueLock lock(mutex_);
    clock_.wait(not_empty_, lock, [&]() GP_REQUIRES(mutex_) { return ready(); });
    news_.store(true, std::memory_order_relaxed);
}

}  // namespace gpupool::worker
