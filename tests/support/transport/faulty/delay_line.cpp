#include "tests/support/transport/faulty/delay_line.h"

#include <sys/prctl.h>

#include <algorithm>

namespace gpupool::transport::faulty {
namespace {

constexpr std::size_t kParcelBytes = 64u << 10;

std::size_t most_waiting(std::chrono::microseconds delay, std::uint64_t bytes_per_second) {
    if (bytes_per_second == 0) {
        return DelayLine::kMaxWaitingBytes;
    }
    const double seconds = 0.05 + std::chrono::duration<double>(delay).count();
    const auto bytes = static_cast<std::size_t>(seconds * static_cast<double>(bytes_per_second));
    return std::clamp(bytes, kParcelBytes, DelayLine::kMaxWaitingBytes);
}

}  // namespace

DelayLine::DelayLine(Connection& inner, std::chrono::microseconds delay, std::uint64_t bytes_per_second)
    : inner_(inner),
      delay_(delay),
      bytes_per_second_(bytes_per_second),
      most_waiting_bytes_(most_waiting(delay, bytes_per_second)),
      thread_([this] { run(); }) {}

DelayLine::~DelayLine() {
    abandon();
    thread_.join();
}

Status DelayLine::push(ConstBuffer data) {
    std::unique_lock lock(mutex_);
    while (!data.empty()) {
        left_.wait(lock, [&] { return waiting_bytes_ < most_waiting_bytes_ || finished_ || abandoned_ || error_; });
        if (error_) {
            return *error_;
        }
        if (finished_ || abandoned_) {
            return Error{ErrorCode::closed, "the connection was closed"};
        }
        const auto part = data.first(std::min(data.size(), kParcelBytes));
        const auto now = Clock::now();
        line_free_at_ = std::max(line_free_at_, now);
        if (bytes_per_second_ > 0) {
            line_free_at_ += std::chrono::nanoseconds(part.size() * 1'000'000'000 / bytes_per_second_);
        }
        parcels_.push_back({line_free_at_ + delay_, {part.begin(), part.end()}});
        waiting_bytes_ += part.size();
        data = data.subspan(part.size());
        arrived_.notify_one();
    }
    return {};
}

bool DelayLine::finish(std::chrono::microseconds timeout) noexcept {
    std::unique_lock lock(mutex_);
    finished_ = true;
    left_.notify_all();
    return left_.wait_for(lock, timeout, [&] { return waiting_bytes_ == 0 || abandoned_ || error_; });
}

void DelayLine::abandon() noexcept {
    const std::lock_guard lock(mutex_);
    abandoned_ = true;
    parcels_.clear();
    arrived_.notify_all();
    left_.notify_all();
}

void DelayLine::run() {
    (void)::prctl(PR_SET_TIMERSLACK, 1);  // the default slack of 50 us would dominate a small delay
    std::unique_lock lock(mutex_);
    while (!abandoned_ && !error_) {
        if (parcels_.empty()) {
            arrived_.wait(lock);
            continue;
        }
        const auto due = parcels_.front().due;
        if (Clock::now() < due) {
            arrived_.wait_until(lock, due);
            continue;
        }
        const auto parcel = std::move(parcels_.front());
        parcels_.pop_front();
        lock.unlock();
        const ConstBuffer buffers[] = {parcel.bytes};
        auto status = inner_.send(buffers);
        lock.lock();
        waiting_bytes_ -= parcel.bytes.size();
        if (!status) {
            error_ = status.error();
        }
        left_.notify_all();
    }
}

}  // namespace gpupool::transport::faulty
