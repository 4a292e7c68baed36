// What the worker keeps of a session's graphs beside the driver.
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
    // Changes of executables that wait, by the driver's nodes that they name.
    std::unordered_multiset<CUgraphNode> changes_waiting;
    // Nodes that were added to graphs of the driver, those within child graphs included.
    std::unordered_map<CUgraph, std::uint64_t> added_nodes;
    std::uint64_t all_added_nodes = 0;
    // Graphs that were counted and found full, until a node is destroyed: to count is to walk through all of it.
    std::unordered_set<CUgraph> full;
    // What nobody waited for and was refused: without it such a graph is not what the program made.
    std::unordered_map<CUgraph, CUresult> failed;
    // And the nodes whose change was, until another takes.
    std::unordered_map<CUgraphNode, CUresult> unchanged;
    std::unordered_map<CUgraph, unsigned> levels;  // how deep the driver's graphs within others lie
    // The graphs of conditional nodes, which the driver tells when it makes them, and never again.
    std::unordered_map<CUgraphNode, std::vector<CUgraph>> bodies;
    std::string dot_text;  // of the last gpGraphDot

    // Null where there is none.
    [[nodiscard]] std::shared_ptr<GraphExec> executable(CUgraphExec client) const {
        const auto it = executables.find(client);
        return it == executables.end() ? nullptr : it->second;
    }
};

}  // namespace gpupool::worker
