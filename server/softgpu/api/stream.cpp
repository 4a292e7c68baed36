// Streams: in-order queues with a thread each, and the ordering between the legacy stream and the blocking streams.
#include <system_error>
#include <thread>

#include "server/softgpu/api/objects.h"

namespace gpupool::softgpu {
namespace {

// Measured on a GPU: a launch blocks once about this many are queued on its stream.
constexpr std::size_t kMaxQueued = 1020;
// An idle stream's thread ends after this time; the next work starts another.
constexpr auto kIdleTime = std::chrono::milliseconds(200);
// How long to retry if no thread can be created. Idle streams' threads end in this time.
constexpr auto kThreadTimeout = 3 * kIdleTime;

}  // namespace

void Moment::reach() {
    const Lock lock(mutex);
    at = std::chrono::steady_clock::now();
    reached = true;
    reached_changed.notify_all();
}

bool Moment::is_reached() {
    const Lock lock(mutex);
    return reached;
}

void Moment::wait(const std::atomic<bool>& stop) {
    UniqueLock lock(mutex);
    while (!reached && !stop.load()) {
        // The moment's own context may be destroyed, and then it is never reached; `stop` is another context's flag. So
        // poll.
        reached_changed.wait_for(lock, std::chrono::milliseconds(100));
    }
}

Stream::Stream(Context& owner, unsigned stream_flags, int stream_priority)
    : context(owner), flags(stream_flags), priority(stream_priority), id(state().next_id.fetch_add(1)) {}

void Stream::wait_for_space() {
    UniqueLock lock(mutex_);
    changed_.wait(lock, [&]() GP_REQUIRES(mutex_) { return queue_.size() < kMaxQueued; });
}

std::uint64_t Stream::submit(Work work, std::shared_ptr<Moment> done) {
    UniqueLock lock(mutex_);
    queue_.push_back({std::move(work), std::move(done)});
    const std::uint64_t number = ++submitted_;
    if (running_) {
        if (queue_.size() == 1) {
            changed_.notify_all();
        }
        return number;
    }
    running_ = true;
    lock.unlock();
    if (!start_thread()) {
        // As after a fault: no work of the context runs any more. Count this stream's work as complete, on this thread.
        context.poison(CUDA_ERROR_OPERATING_SYSTEM);
        run(std::chrono::milliseconds(0));
    }
    return number;
}

bool Stream::start_thread() {
    for (const auto until = std::chrono::steady_clock::now() + kThreadTimeout;;) {
        try {
            std::thread([self = shared_from_this()] { self->run(kIdleTime); }).detach();
            return true;
        } catch (const std::system_error& error) {
            if (std::chrono::steady_clock::now() >= until) {
                std::fprintf(stderr, "gpupool software GPU: cannot create a thread for a stream: %s\n", error.what());
                return false;
            }
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
}

void Stream::retire() {
    const Lock lock(mutex_);
    destroyed_ = true;
    changed_.notify_all();
}

void Stream::run(std::chrono::milliseconds timeout) {
    UniqueLock lock(mutex_);
    for (;;) {
        if (queue_.empty()) {
            changed_.wait_for(lock, timeout, [&]() GP_REQUIRES(mutex_) { return !queue_.empty() || destroyed_; });
            if (queue_.empty()) {
                running_ = false;
                return;
            }
        }
        auto [work, done] = std::move(queue_.front());
        lock.unlock();
        // After a fault no work of the context runs any more, but all of it is counted as complete.
        CUresult result = CUDA_SUCCESS;
        if (context.status() == CUDA_SUCCESS && !context.stop.load()) {
            result = work();
        }
        if (result != CUDA_SUCCESS) {
            context.poison(result);
        }
        work = nullptr;  // releases its references before the work is seen as complete
        lock.lock();
        if (done != nullptr) {
            done->reach();  // a thread that this wakes cannot query the stream before mutex_ is released
        }
        queue_.pop_front();
        ++completed_;
        changed_.notify_all();
    }
}

void Stream::wait(std::uint64_t sequence) {
    UniqueLock lock(mutex_);
    changed_.wait(lock, [&]() GP_REQUIRES(mutex_) { return completed_ >= sequence; });
}

bool Stream::is_done(std::uint64_t sequence) {
    const Lock lock(mutex_);
    return completed_ >= sequence;
}

std::uint64_t Stream::submitted() {
    const Lock lock(mutex_);
    return submitted_;
}

bool is_legacy(const Stream& stream) {
    return stream.context.legacy.get() == &stream;
}

CUresult run_host_function(Context& context, CUhostFn function, void* data) {
    const Lock lock(context.host_function_mutex);
    in_host_function() = true;
    function(data);
    in_host_function() = false;
    return CUDA_SUCCESS;
}

std::uint64_t submit_ordered(const StreamPtr& stream, Stream::Work work, std::shared_ptr<Moment> done) {
    Context& context = stream->context;
    stream->wait_for_space();
    if ((stream->flags & CU_STREAM_NON_BLOCKING) != 0) {
        return stream->submit(std::move(work), std::move(done));
    }
    // Work of the legacy stream waits for all blocking streams, and their work for the legacy stream. Each waits only
    // for work submitted earlier, so there is no deadlock. The lock makes "earlier" the same order for all threads.
    const Lock lock(context.order_mutex);
    std::vector<std::pair<StreamPtr, std::uint64_t>> earlier;
    if (is_legacy(*stream)) {
        for (const auto& other : context.all_streams()) {
            if (other == stream || (other->flags & CU_STREAM_NON_BLOCKING) != 0) {
                continue;
            }
            const std::uint64_t last = other->submitted();
            if (!other->is_done(last)) {
                earlier.emplace_back(other, last);
            }
        }
    } else {
        const std::uint64_t last = context.legacy->submitted();
        if (!context.legacy->is_done(last)) {
            earlier.emplace_back(context.legacy, last);
        }
    }
    if (earlier.empty()) {
        return stream->submit(std::move(work), std::move(done));
    }
    auto in_order = [earlier = std::move(earlier), work = std::move(work), &context]() -> CUresult {
        for (const auto& [other, last] : earlier) {
            other->wait(last);
        }
        return context.status() == CUDA_SUCCESS ? work() : CUDA_SUCCESS;
    };
    return stream->submit(std::move(in_order), std::move(done));
}

}  // namespace gpupool::softgpu
