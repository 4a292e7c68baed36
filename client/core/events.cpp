#include "client/core/events.h"

#include <mutex>

namespace gpupool::client {

void Events::add(CUevent handle, unsigned flags) {
    auto event = std::make_shared<Event>(flags);
    const std::unique_lock lock(mutex_);
    events_[handle] = std::move(event);
}

bool Events::remove(CUevent handle) {
    const std::unique_lock lock(mutex_);
    return events_.erase(handle) != 0;
}

std::shared_ptr<Event> Events::find(CUevent handle) const {
    const std::shared_lock lock(mutex_);
    const auto it = events_.find(handle);
    return it == events_.end() ? nullptr : it->second;
}

void Events::always_ask(CUevent handle) {
    if (const auto event = find(handle)) {
        event->always_ask = true;
    }
}

void Events::note_complete(CUevent handle, std::uint64_t record, CUresult result) {
    const auto event = find(handle);
    if (event == nullptr) {
        return;  // destroyed meanwhile
    }
    if (result == CUDA_SUCCESS) {
        // Ends come in the records' order, but for records that threads made at the same time.
        if (event->completed.load(std::memory_order_relaxed) < record) {
            event->completed.store(record, std::memory_order_release);
        }
    } else {
        event->watched.store(0, std::memory_order_release);  // who asks now hears why
    }
}

}  // namespace gpupool::client
