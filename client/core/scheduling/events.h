// What the client knows of the application's events: whether the latest record of an event is complete, so that a query
// needs no round trip.
//
// After the first query of an event, the worker sends a notice when a record of it completes (behind all data that the
// GPU wrote before). Two kinds of events are always queried on the server: those that a graph may record, because the
// client does not see such records, and those shared with other processes. An event that a launch records is queried
// there until a call records it again.
//
// Ownership: shared pointers; an event's state lives as long as any of them.
// Threads: any; note_complete() the receiving thread and threads that waited.
// Errors: none.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "client/core/dispatch/handle_map.h"
#include "protocol/calls/cuda_api.h"

namespace gpupool::client {

struct Event {
    explicit Event(unsigned with_flags) : flags(with_flags), always_ask((with_flags & CU_EVENT_INTERPROCESS) != 0) {}

    const unsigned flags;  // as passed to cuEventCreate
    std::atomic<bool> always_ask;
    std::atomic<bool> launched_with{false};  // a launch attribute made its latest record
    std::atomic<bool> queried{false};        // the program queries this event: the worker watches its records
    std::atomic<std::uint64_t> record{0};  // number of the latest record, which may not be sent yet; 0: never recorded
    // the latest record that was sent: a query now is about this one or a later one
    std::atomic<std::uint64_t> sent{0};
    std::atomic<std::uint64_t> watched{0};    // the record whose completion the worker will report
    std::atomic<std::uint64_t> completed{0};  // the latest record known to be complete

    // False if there is surely nothing to wait for.
    [[nodiscard]] bool was_recorded() const {
        return record.load(std::memory_order_acquire) != 0 || always_ask.load(std::memory_order_relaxed) ||
               launched_with.load(std::memory_order_relaxed);
    }

    // What the client knows without a round trip.
    enum class Known { complete, pending, unknown };
    [[nodiscard]] Known known() const {
        const std::uint64_t latest = record.load(std::memory_order_acquire);
        if (always_ask.load(std::memory_order_relaxed) || launched_with.load(std::memory_order_relaxed)) {
            return Known::unknown;
        }
        if (completed.load(std::memory_order_acquire) == latest) {
            return Known::complete;  // also if it was never recorded
        }
        return watched.load(std::memory_order_acquire) == latest ? Known::pending : Known::unknown;
    }
};

class Events {
  public:
    void add(CUevent handle, unsigned flags);
    bool remove(CUevent handle);
    // Null if the handle is not known.
    [[nodiscard]] std::shared_ptr<Event> find(CUevent handle) const;
    // From now on a graph may record the event.
    void always_ask(CUevent handle);
    // The worker has reported the end of a record.
    void note_complete(CUevent handle, std::uint64_t record, CUresult result);

  private:
    HandleMap<CUevent, std::shared_ptr<Event>> events_;
};

}  // namespace gpupool::client
