// The application's events as the client knows them: whether an event's latest record is complete, so that asking for
// it needs no round trip.
//
// The worker is asked once; from then on it says by itself when a record of that event is complete (a notice, behind
// all data that the GPU wrote before). A record that a graph makes happens without the client's knowledge: such events
// are always asked for, and so are those of other processes. One that a launch makes is asked for until the event is
// recorded by a call of its own.
//
// Ownership: an event's state lives as long as somebody holds it. Threads: any; note_complete() the receiving thread's
// and those that waited. Errors: none.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "client/core/dispatch/handle_map.h"
#include "protocol/calls/cuda_api.h"

namespace gpupool::client {

struct Event {
    explicit Event(unsigned with_flags) : flags(with_flags), always_ask((with_flags & CU_EVENT_INTERPROCESS) != 0) {}

    const unsigned flags;  // that it was made with
    std::atomic<bool> always_ask;
    std::atomic<bool> launched_with{false};   // its latest record is a launch's, by an attribute
    std::atomic<bool> queried{false};         // the program asks for this event: its records are watched
    std::atomic<std::uint64_t> record{0};     // the latest, perhaps not sent yet; 0: never recorded
    std::atomic<std::uint64_t> sent{0};       // the latest that what is asked now is an answer for
    std::atomic<std::uint64_t> watched{0};    // the record whose end the worker will tell
    std::atomic<std::uint64_t> completed{0};  // the latest record that is known to be complete

    // What a query finds without asking: complete, not yet, or that it has to ask.
    enum class Known { complete, pending, unknown };
    [[nodiscard]] Known known() const {
        const std::uint64_t latest = record.load(std::memory_order_acquire);
        if (always_ask.load(std::memory_order_relaxed) || launched_with.load(std::memory_order_relaxed)) {
            return Known::unknown;
        }
        if (completed.load(std::memory_order_acquire) == latest) {
            return Known::complete;  // as one that was never recorded is
        }
        return watched.load(std::memory_order_acquire) == latest ? Known::pending : Known::unknown;
    }
};

class Events {
  public:
    void add(CUevent handle, unsigned flags);
    bool remove(CUevent handle);
    // Null when there is none.
    [[nodiscard]] std::shared_ptr<Event> find(CUevent handle) const;
    // A graph may record it from now on.
    void always_ask(CUevent handle);
    // The worker says how the record ended.
    void note_complete(CUevent handle, std::uint64_t record, CUresult result);

  private:
    HandleMap<CUevent, std::shared_ptr<Event>> events_;
};

}  // namespace gpupool::client
