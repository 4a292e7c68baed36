#include "client/core/scheduling/events.h"

#include "common/pooled.h"

namespace gpupool::client {

void Events::add(CUevent handle, unsigned flags) {
    events_.add(handle, make_shared_pooled<Event>(flags));
}

bool Events::remove(CUevent handle) {
    return events_.remove(handle);
}

std::shared_ptr<Event> Events::find(CUevent handle) const {
    std::shared_ptr<Event> event;
    events_.find(handle, event);
    return event;
}

void Events::always_ask(CUevent handle) {
    if (const auto event = find(handle)) {
        event->always_ask = true;
    }
}

void Events::note_complete(CUevent handle, std::uint64_t record, CUresult result) {
    const auto event = find(handle);
    if (event == nullptr) {
        return;  // the event was destroyed in between
    }
    if (result == CUDA_SUCCESS) {
        // Completions arrive in the order of the records, except for records that threads made concurrently.
        std::uint64_t before = event->completed.load(std::memory_order_relaxed);
        while (before < record && !event->completed.compare_exchange_weak(before, record, std::memory_order_release,
                                                                          std::memory_order_relaxed)) {
        }
    } else {
        event->watched.store(0, std::memory_order_release);  // the next query gets the error from the worker
    }
}

}  // namespace gpupool::client
