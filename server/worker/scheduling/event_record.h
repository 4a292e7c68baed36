// Chooses the driver's event for a record of the program's event.
//
// A program may record an event again while a thread waits for its former record, while a queued entry of another
// stream has yet to wait for it, or before the queued entry that makes it was issued. Each of these means the record
// that was the last when it arrived. So the new record gets another of the driver's events. It keeps the present one
// only if a graph or another process refers to that; then the record is queued behind those that are queued.
//
// Threads: the dispatcher's.
// Errors: the driver's.
#pragma once

#include <memory>

#include "server/worker/dispatch/views.h"

namespace gpupool::worker {

// Returns the state of the event that `command` records in `stream`, the `index`-th that it names. For a queued command
// this is decided on arrival; when it is ready it finds the state in Command::events.
CUresult event_to_record(SessionView& session, const Command& command, CUevent client, std::size_t index,
                         const StreamState& stream, std::shared_ptr<EventState>& event);

}  // namespace gpupool::worker
