// Predicts the driver's verdict on a graph node, so that the call need not wait for it.
//
// Both predictions are false if the client cannot know. The call then waits for the driver's own error.
//
// Ownership: none.
// Threads: any. May need a round trip for unknown attributes of a kernel.
// Errors: none.
#pragma once

#include "client/core/graphs/graphs.h"

namespace gpupool::client {

// Will the driver certainly add such a node to `graph`, with these dependencies?
bool surely_added(CUgraph graph, const CUgraphNode* dependencies, std::size_t count, const CUgraphEdgeData* edges,
                  const CUgraphNodeParams& parameters);
// Will it certainly accept new parameters for `node`: in its graph, or, if `executable` is not null, in that?
bool surely_changed(CUgraphExec executable, const Graphs::Node& node, const CUgraphNodeParams& parameters);

// The function of a kernel node; if it names a kernel, that kernel's function in the current context. Null for other
// nodes.
CUfunction function_of(const CUgraphNodeParams& parameters);

}  // namespace gpupool::client
