#include "client/core/scheduling/held_streams.h"

namespace gpupool::client {

bool HeldStreams::contains(const StreamKey& stream) const {
    const Lock lock(mutex_);
    return streams_.contains(stream);
}

bool HeldStreams::set(const StreamKey& stream, bool held) {
    {
        const Lock lock(mutex_);
        if (held) {
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

void HeldStreams::set_all(bool held) {
    {
        const Lock lock(mutex_);
        all_ = held;
        count_ = streams_.size() + (all_ ? 1 : 0);
    }
    changed_.notify_all();
}

void HeldStreams::wait(const StreamKey& stream) {
    UniqueLock lock(mutex_);
    changed_.wait(lock, [&]() GP_REQUIRES(mutex_) { return ended_ || !(all_ || streams_.contains(stream)); });
}

void HeldStreams::wait_for_all() {
    UniqueLock lock(mutex_);
    changed_.wait(lock, [&]() GP_REQUIRES(mutex_) { return ended_ || !all_; });
}

void HeldStreams::end() {
    {
        const Lock lock(mutex_);
        ended_ = true;
    }
    changed_.notify_all();
}

}  // namespace gpupool::client
