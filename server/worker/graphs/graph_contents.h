// A graph of the driver with all graphs within it, and removal of what the session recorded about them.
//
// Threads: the dispatcher's.
// Errors: graphs that the driver refuses to enumerate are skipped.
#pragma once

#include <vector>

#include "server/worker/dispatch/views.h"
#include "server/worker/graphs/graph_expansion.h"

namespace gpupool::worker {

struct GraphContents {
    std::vector<CUgraphNode> nodes;
    std::vector<CUgraph> graphs;
    std::vector<CUgraph> bodies;  // those of `graphs` that belong to conditional nodes

    void add(const GraphView& session, CUgraph graph, unsigned level = 1);
    // Adds the graphs of a node at nesting depth `level`.
    void add_children(const GraphView& session, CUgraphNode node, unsigned level);
    // They are destroyed: forgets them, since the driver may reuse their handles.
    void forget(GraphView& session) const;
};

// What `graph` is expanded with. Moves its stand-ins out of the GraphBook; put_stand_ins() returns those that remain.
ExpansionParts take_parts(GraphView& session, const ContextState& context, CUgraph graph);
void put_stand_ins(GraphView& session, const ExpansionParts& parts);

// The error of a deferred addition or change that failed in `graph` or in graphs within it: the graph differs from the
// program's. CUDA_SUCCESS if there is none.
CUresult failure_of(const GraphView& session, CUgraph graph);

}  // namespace gpupool::worker
