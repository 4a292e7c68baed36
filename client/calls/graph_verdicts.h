// What the driver would say of a node, where that can be known here: then nobody waits for it to say so.
//
// Both answer false where they cannot know: it is the driver that refuses, with its own error. Threads: any; may ask
// the server for what it does not know of a kernel.
#pragma once

#include "client/core/graphs/graphs.h"

namespace gpupool::client {

// Will the driver add such a node to `graph`, behind these?
bool surely_added(CUgraph graph, const CUgraphNode* dependencies, std::size_t count, const CUgraphEdgeData* edges,
                  const CUgraphNodeParams& parameters);
// Will it give `node` new parameters: in its graph, or, where `executable` is not null, in that?
bool surely_changed(CUgraphExec executable, const Graphs::Node& node, const CUgraphNodeParams& parameters);

// A kernel's node's function, or its kernel's in the current context; null for other nodes.
CUfunction function_of(const CUgraphNodeParams& parameters);

}  // namespace gpupool::client
