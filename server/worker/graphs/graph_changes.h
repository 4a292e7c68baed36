// Changes of graphs and executables: what is noted of one that nobody waits for, and the order of those that wait.
//
// An executable graph is changed for the launches behind it: while launches that came before are held in their streams,
// a change waits for them, and what depends on it waits for the change.
//
// Threads: the dispatcher's. Errors: a verdict that nobody waits for is noted (GraphBook::unchanged,
// GraphExec::refused).
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "server/worker/dispatch/serve.h"
#include "server/worker/graphs/graph_contents.h"

namespace gpupool::worker {

// The verdict on a change that nobody may be waiting for, of a graph's node or of an executable, which it returns.
CUresult note_change(Worker& worker, const Command& command, CUgraphNode node, CUresult result);
CUresult note_change(const Command& command, GraphExec& graph, CUresult result);

// Makes the change on a helper, and has `done` called with the verdict: the driver waits for the GPU where a changed
// graph needs more local memory than any before, and the GPU may have to wait for us.
void change_elsewhere(Worker& worker, const Command& command, std::function<CUresult()> change,
                      std::function<void(CUresult)> done);

// A change of an executable graph is one for the launches behind it: empty when it may be made now. `client` is what
// the client calls it, `node` the driver's; null for a change of all.
std::optional<Outcome> await_launches(Worker& worker, const Command& command, CUgraphExec client,
                                      const std::shared_ptr<GraphExec>& graph, CUgraphNode node);

// Does a change that waits name a node of these?
bool is_named(const Worker& worker, const GraphContents& contents);
// What ends something that a waiting change names, or asks what it is, comes behind the change: empty when none waits.
std::optional<Outcome> await_changes(Worker& worker, const Command& command, bool any);

}  // namespace gpupool::worker
