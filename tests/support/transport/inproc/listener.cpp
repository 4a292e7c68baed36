#include "tests/support/transport/inproc/listener.h"

namespace gpupool::transport::inproc {

Result<std::unique_ptr<Connection>> Backlog::connect(std::size_t buffer_bytes) {
    auto [here, there] = make_pair(buffer_bytes);
    const std::lock_guard lock(mutex_);
    if (shut_down_) {
        return Error{ErrorCode::unavailable, "cannot connect: the in-process listener was closed"};
    }
    if (waiting_.size() >= kMaxWaiting) {
        return Error{ErrorCode::unavailable, "cannot connect: too many connections wait for the in-process listener"};
    }
    waiting_.push_back(std::move(there));
    changed_.notify_one();
    return std::move(here);
}

Result<std::unique_ptr<Connection>> Backlog::accept() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return shut_down_ || !waiting_.empty(); });
    if (shut_down_) {
        return Error{ErrorCode::closed, "the listener was closed"};
    }
    auto connection = std::move(waiting_.front());
    waiting_.pop_front();
    return connection;
}

void Backlog::shutdown() noexcept {
    const std::lock_guard lock(mutex_);
    shut_down_ = true;
    waiting_.clear();  // each destructor notifies the other end
    changed_.notify_all();
}

}  // namespace gpupool::transport::inproc
