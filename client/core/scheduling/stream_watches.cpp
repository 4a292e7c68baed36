#include "client/core/scheduling/stream_watches.h"

namespace gpupool::client {

StreamWatches::Known StreamWatches::known(const StreamKey& stream, std::uint64_t sent, std::uint64_t received) {
    const Lock lock(mutex_);
    const auto found = watches_.find(stream);
    if (found == watches_.end()) {
        return Known::unknown;
    }
    const Watch& watch = found->second;
    if (watch.under_way()) {
        return watch.received == received ? Known::pending : Known::unknown;
    }
    return watch.complete_until == sent ? Known::complete : Known::unknown;
}

bool StreamWatches::answered(const StreamKey& stream, bool complete, std::uint64_t received) {
    const Lock lock(mutex_);
    auto found = watches_.find(stream);
    if (complete) {
        if (found != watches_.end() && !found->second.under_way()) {
            watches_.erase(found);  // while it is watched, the worker's notice is still to arrive
        }
        return false;
    }
    if (found == watches_.end()) {
        found = watches_.try_emplace(stream).first;
    }
    Watch& watch = found->second;
    watch.received = received;
    return !watch.under_way() && ++watch.answers == kAnswersBefore;
}

void StreamWatches::note_complete(const StreamKey& stream, std::uint64_t command, bool complete) {
    const Lock lock(mutex_);
    const auto found = watches_.find(stream);
    if (found == watches_.end()) {
        return;  // the stream was destroyed in between
    }
    if (complete) {
        found->second = {.complete_until = command};
    } else {
        watches_.erase(found);
    }
}

void StreamWatches::forget(const StreamKey& stream) {
    const Lock lock(mutex_);
    watches_.erase(stream);
}

}  // namespace gpupool::client
