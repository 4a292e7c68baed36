#include "client/core/stream_watches.h"

namespace gpupool::client {

StreamWatches::Known StreamWatches::known(const StreamKey& stream, std::uint64_t sent, std::uint64_t received) {
    const std::lock_guard lock(mutex_);
    const auto watch = watches_.find(stream);
    if (watch == watches_.end() || watch->second.answers < kAnswersBefore) {
        return Known::unknown;
    }
    if (!watch->second.told) {
        return watch->second.received == received ? Known::pending : Known::unknown;
    }
    if (watch->second.command == sent) {
        return Known::complete;
    }
    if (watch->second.command != 0) {
        watches_.erase(watch);
    }
    return Known::unknown;
}

bool StreamWatches::answered(const StreamKey& stream, bool complete, std::uint64_t received) {
    const std::lock_guard lock(mutex_);
    const auto watch = watches_.try_emplace(stream).first;
    if (complete) {
        if (watch->second.answers < kAnswersBefore) {
            watches_.erase(watch);  // else the worker has yet to tell of it
        }
        return false;
    }
    watch->second.received = received;
    return watch->second.answers < kAnswersBefore && ++watch->second.answers == kAnswersBefore;
}

void StreamWatches::asked(const StreamKey& stream, std::uint64_t command) {
    const std::lock_guard lock(mutex_);
    if (const auto watch = watches_.find(stream); watch != watches_.end()) {
        watch->second.command = command;
    }
}

void StreamWatches::note_complete(const StreamKey& stream, bool complete) {
    const std::lock_guard lock(mutex_);
    const auto watch = watches_.find(stream);
    if (watch == watches_.end()) {
        return;  // destroyed meanwhile
    }
    if (complete) {
        watch->second.told = true;
    } else {
        watches_.erase(watch);
    }
}

void StreamWatches::forget(const StreamKey& stream) {
    const std::lock_guard lock(mutex_);
    watches_.erase(stream);
}

}  // namespace gpupool::client
