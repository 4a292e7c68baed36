// Changes of graphs and executables: verdicts on changes whose caller does not wait, and the order of changes that
// wait.
//
// A change of an executable graph applies to later launches only. While earlier launches are queued, the change waits
// for them, and later launches and changes wait for the change.
//
// Threads: the dispatcher's.
// Errors: a verdict whose caller does not wait is recorded (GraphBook::failed_changes, GraphExec::refused).
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "server/worker/graphs/graph_contents.h"
#include "server/worker/graphs/graph_exec.h"
#include "server/worker/handlers/handlers.h"

namespace gpupool::worker {

// Records the verdict on a change of a graph's node or of an executable if the caller does not wait for it. Returns it.
CUresult note_change(GraphView& session, const Command& command, CUgraphNode node, CUresult result);
CUresult note_change(const Command& command, GraphExec& graph, CUresult result);

// The driver makes room for the local memory of a graph's kernels when it instantiates or changes the graph. Charges
// that room. If it is beyond the quota, has the driver give it back: then launches of the graph fail. Calls `then` at
// the end, at once if nothing has to be given back, and when the driver is open. It must be open now.
void charge_stack_of(SessionView& session, CUcontext context, GraphExec& graph, std::function<void()> then);

// Makes the change on a helper and calls `done` with the verdict. The driver waits for the GPU if a changed graph needs
// more local memory than any before, and the GPU may be waiting for the dispatcher.
void change_elsewhere(GraphView& session, const Command& command, std::function<CUresult()> change,
                      std::function<void(CUresult)> done);

// Empty if the change of an executable graph may be made now. Else queues it behind the launches and changes before it
// and returns the outcome. `client` is the client's handle, `node` the driver's; null for a change of the whole
// executable.
std::optional<Outcome> await_launches(GraphView& session, const Command& command, CUgraphExec client,
                                      const std::shared_ptr<GraphExec>& graph, CUgraphNode node);

// Does a waiting change name one of these nodes?
bool is_named(const GraphView& session, const GraphContents& contents);
// Postpones a command that destroys or queries something that a waiting change names (`any`) until that is made. Empty
// if there is no such change.
std::optional<Outcome> await_changes(GraphView& session, const Command& command, bool any);

}  // namespace gpupool::worker
