// What the worker keeps of a session's graphs beside the driver.
//
// Threads: the dispatcher's alone.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>

#include "protocol/calls/cuda_api.h"
#include "server/worker/graph_exec.h"

namespace gpupool::worker {

struct GraphBook {
    std::unordered_map<CUgraphExec, std::shared_ptr<GraphExec>> executables;  // by client handle
    std::size_t changes_waiting = 0;  // of all executables
    // Nodes that were added to graphs of the driver, those within child graphs included.
    std::unordered_map<CUgraph, std::uint64_t> added_nodes;
    std::uint64_t all_added_nodes = 0;
    std::unordered_map<CUgraph, unsigned> levels;  // how deep the driver's graphs within others lie
    std::string dot_text;                          // of the last gpGraphDot
};

}  // namespace gpupool::worker
