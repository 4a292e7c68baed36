#include "benchmarks/network/link.h"

#include <sys/prctl.h>

#include <algorithm>

namespace gpupool::network {
namespace {

constexpr std::size_t kLeastPart = 4u << 10, kMaxPart = 256u << 10;
constexpr std::size_t kMaxAtOnce = 64;  // parts
constexpr double kPartSeconds = 20e-6;  // of the link's time

}  // namespace

Clock::time_point Link::admit(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    const auto begin = std::max(Clock::now(), free_at_);
    free_at_ = bytes_per_s_ == 0 ? begin
                                 : begin + std::chrono::nanoseconds(static_cast<std::int64_t>(
                                               static_cast<double>(bytes) / bytes_per_s_ * 1e9));
    return free_at_ + delay_;
}

std::size_t Link::part_bytes() const {
    return bytes_per_s_ == 0 ? kMaxPart
                             : std::clamp(static_cast<std::size_t>(bytes_per_s_ * kPartSeconds), kLeastPart, kMaxPart);
}

std::size_t Link::in_flight_bytes() const {
    constexpr double kUnlimited = 12.5e9;  // for the memory only
    const double rate = bytes_per_s_ == 0 ? kUnlimited : bytes_per_s_;
    return static_cast<std::size_t>(rate * std::chrono::duration<double>(delay_).count());
}

Path::Path(Link& link, transport::Connection& to, Traffic& traffic)
    : link_(link),
      to_(to),
      traffic_(traffic),
      part_bytes_(link.part_bytes()),
      ring_bytes_(link.in_flight_bytes() + kBufferBytes),
      ring_(std::make_unique<std::byte[]>(ring_bytes_)),  // touched now, before anything is measured
      thread_([this] { run(); }) {}

Path::~Path() {
    {
        const std::lock_guard lock(mutex_);
        finished_ = true;
    }
    news_.store(true, std::memory_order_release);
    came_.notify_one();
    thread_.join();
}

// Moves the head to where a part fits in one piece; false when there is no such place.
bool Path::find_room() {
    if (held_bytes_ == 0) {
        head_ = tail_ = 0;  // the ring's start is most likely still in the caches
        return true;
    }
    if (head_ > tail_ && ring_bytes_ - head_ >= part_bytes_) {
        return true;
    }
    if (head_ > tail_) {
        head_ = tail_ > part_bytes_ ? 0 : head_;
        return head_ == 0;
    }
    return tail_ - head_ > part_bytes_;  // never the whole ring, which would look empty
}

Result<transport::MutableBuffer> Path::room() {
    std::unique_lock lock(mutex_);
    went_.wait(lock, [&] { return error_ || find_room(); });
    if (error_) {
        return *error_;
    }
    return transport::MutableBuffer(ring_.get() + head_, part_bytes_);
}

bool Path::has_room() {
    const std::lock_guard lock(mutex_);
    return error_ || find_room();
}

std::size_t Path::unsent_bytes() {
    const std::lock_guard lock(mutex_);
    const auto sent = [now = Clock::now(), this](const Part& part) { return part.due - link_.delay() <= now; };
    std::size_t bytes = 0;
    for (auto part = parts_.rbegin(); part != parts_.rend() && !sent(*part); ++part) {
        bytes += part->bytes;
    }
    return bytes;
}

bool Path::wait_delivered(Clock::time_point deadline) {
    std::unique_lock lock(mutex_);
    delivered_.wait_until(lock, deadline, [&] { return error_ || held_bytes_ == 0; });
    return held_bytes_ == 0;
}

void Path::push(std::size_t bytes) {
    traffic_.note(bytes);
    {
        const std::lock_guard lock(mutex_);
        // Under the path's lock, so that its parts' times are in order.
        parts_.push_back({link_.admit(bytes), head_, bytes});
        head_ += bytes;
        held_bytes_ += bytes;
    }
    news_.store(true, std::memory_order_release);
    came_.notify_one();
}

void Path::run() {
    ::prctl(PR_SET_TIMERSLACK, 1000ul);
    std::vector<Part> due;
    std::vector<transport::ConstBuffer> buffers;
    std::unique_lock lock(mutex_);
    while (true) {
        if (!finished_ && parts_.empty()) {
            news_.store(false, std::memory_order_relaxed);
            lock.unlock();
            const auto came = [&] { return news_.load(std::memory_order_acquire); };
            (void)(traffic_.poll_for(came, sleeper_, link_.delay()) || spin_.until(came));
            lock.lock();
        }
        came_.wait(lock, [&] { return finished_ || !parts_.empty(); });
        if (parts_.empty()) {
            return;
        }
        const Clock::time_point first = parts_.front().due;
        lock.unlock();
        sleeper_.until(first);
        lock.lock();
        // A sleeper wakes a little late, so everything due by now is sent as well.
        const Clock::time_point now = Clock::now();
        std::size_t bytes = 0;
        while (!parts_.empty() && (due.empty() || parts_.front().due <= now) && due.size() < kMaxAtOnce) {
            bytes += parts_.front().bytes;
            due.push_back(parts_.front());
            parts_.pop_front();
        }
        lock.unlock();
        for (const Part& part : due) {
            buffers.emplace_back(ring_.get() + part.begin, part.bytes);
        }
        const Status sent = to_.send(buffers);
        buffers.clear();
        due.clear();
        lock.lock();
        held_bytes_ -= bytes;
        tail_ = parts_.empty() ? head_ : parts_.front().begin;
        if (!sent) {
            error_ = sent.error();
            parts_.clear();
            went_.notify_one();
            delivered_.notify_all();
            return;
        }
        went_.notify_one();
        if (held_bytes_ == 0) {
            delivered_.notify_all();
        }
    }
}

}  // namespace gpupool::network
