// Which of the driver's events a record of the application's event goes to.
//
// An event may be recorded again while somebody waits for its former record, while a held operation of another stream
// is to wait for it, or before a held operation has made it. All of them mean the record that was the last when they
// came. So the new record gets another of the driver's events, unless a graph, or another process, names the present
// one: then it comes behind those that are held.
//
// Threads: the dispatcher's. Errors: the driver's.
#pragma once

#include <memory>

#include "server/worker/dispatch/worker.h"

namespace gpupool::worker {

// The state of the event that `command` records in `stream`, the `index`-th that it names. Of a command that is held
// this is asked when it comes; at its turn it finds what was kept with it (Command::events).
CUresult event_to_record(Worker& worker, const Command& command, CUevent client, std::size_t index,
                         const StreamState& stream, std::shared_ptr<EventState>& event);

}  // namespace gpupool::worker
