#include "client/core/scheduling/throttled_streams.h"

namespace gpupool::client {

bool ThrottledStreams::contains(const StreamKey& stream) const {
    const Lock lock(mutex_);
    return streams_.contains(stream);
}

bool ThrottledStreams::set(const StreamKey& stream, bool throttled) {
    {
        const Lock lock(mutex_);
        if (throttled) {
            if (streams_.size() >= kMax) {
                return false;
            }
            streams_.insert(stream);
        } else {
            streams_.erase(stream);
        }
        count_ = streams_.size() + (all_ ? 1 : 0);
    }
    changed_.notify_all();
    return true;
}

void ThrottledStreams::set_all(bool throttled) {
    {
        const Lock lock(mutex_);
        all_ = throttled;
        count_ = streams_.size() + (all_ ? 1 : 0);
    }
    changed_.notify_all();
}

void ThrottledStreams::wait(const StreamKey& stream) {
    UniqueLock lock(mutex_);
    changed_.wait(lock, [&]() GP_REQUIRES(mutex_) { return ended_ || !(all_ || streams_.contains(stream)); });
}

void ThrottledStreams::wait_for_all() {
    UniqueLock lock(mutex_);
    changed_.wait(lock, [&]() GP_REQUIRES(mutex_) { return ended_ || !all_; });
}

void ThrottledStreams::end() {
    {
        const Lock lock(mutex_);
        ended_ = true;
    }
    changed_.notify_all();
}

}  // namespace gpupool::client
