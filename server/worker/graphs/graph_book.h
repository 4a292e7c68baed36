// What the worker records about a session's graphs beside the driver's own state.
//
// Threads: the dispatcher's alone.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "protocol/calls/cuda_api.h"
#include "server/worker/graphs/graph_exec.h"

namespace gpupool::worker {

struct GraphBook {
    std::unordered_map<CUgraphExec, std::shared_ptr<GraphExec>> executables;  // by client handle
    // The driver's nodes that waiting changes of executables name, once for each change.
    std::unordered_multiset<CUgraphNode> changes_waiting;
    // How many nodes were added to each of the driver's graphs, nodes of child graphs included.
    std::unordered_map<CUgraph, std::uint64_t> added_nodes;
    std::uint64_t all_added_nodes = 0;
    // Graphs that have all the nodes that the limits allow. Emptied when a node is destroyed. Saves counting them
    // again, which walks the whole graph.
    std::unordered_set<CUgraph> full;
    // Graphs with an addition that the driver refused and whose caller did not wait: the graph is not what the program
    // made.
    std::unordered_map<CUgraph, CUresult> failed;
    // Nodes with a change that the driver refused and whose caller did not wait, until a later change succeeds.
    std::unordered_map<CUgraphNode, CUresult> failed_changes;
    std::unordered_map<CUgraph, unsigned> levels;  // nesting depth of graphs within others
    // The graphs of conditional nodes. The driver returns them only when it creates the node.
    std::unordered_map<CUgraphNode, std::vector<CUgraph>> bodies;
    // Nodes that the worker added to graphs of the program.
    StandIns stand_ins;
    StepKernels step_kernels;
    std::string dot_text;  // result of the last gpGraphDot

    // Null if there is none.
    [[nodiscard]] std::shared_ptr<GraphExec> executable(CUgraphExec client) const {
        const auto it = executables.find(client);
        return it == executables.end() ? nullptr : it->second;
    }
};

}  // namespace gpupool::worker
