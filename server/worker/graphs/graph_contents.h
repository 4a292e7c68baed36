// A graph of the driver's with all graphs within it, and what the worker has noted of them.
//
// Threads: the dispatcher's. Errors: the driver's are passed over where a graph cannot be walked.
#pragma once

#include <vector>

#include "server/worker/dispatch/worker.h"

namespace gpupool::worker {

struct GraphContents {
    std::vector<CUgraphNode> nodes;
    std::vector<CUgraph> graphs;
    std::vector<CUgraph> bodies;  // those of `graphs` that are of conditional nodes

    void add(const Worker& worker, CUgraph graph, unsigned level = 1);
    // The graphs of a node at `level`.
    void add_children(const Worker& worker, CUgraphNode node, unsigned level);
    // They have ended: the driver may give their handles to others.
    void forget(Worker& worker) const;
};

// The graphs of the conditional nodes in it, and in these.
std::vector<CUgraph> bodies_in(const Worker& worker, CUgraph graph);

// Why the graph is not what the program made, if it is not.
CUresult failure_of(const Worker& worker, CUgraph graph);

}  // namespace gpupool::worker
