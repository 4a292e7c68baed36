// How large a graph is, with the graphs within it.
//
// The driver copies a child graph when it is added, so that a few calls that add a graph to the next one twice would
// make a graph of any size, of any depth. What is larger than the limits is refused before it is made.
//
// Threads: any. Errors: the driver's; CUDA_ERROR_OUT_OF_MEMORY beyond the limits.
#pragma once

#include <cstdint>
#include <vector>

#include "protocol/calls/graph_node.h"
#include "server/driver/api.h"
#include "server/worker/graphs/graph_memory.h"

namespace gpupool::worker {

inline constexpr std::uint32_t kMaxGraphNodesAtAll = 8u << 20;  // also of one that was captured
inline constexpr unsigned kMaxGraphDepth = 64;

struct GraphShape {
    std::uint32_t nodes = 0;
    unsigned depth = 0;         // of graphs within graphs; 1: none
    bool needs_client = false;  // has a node that the client must do something for
    BytesByDevice memory;       // that its nodes allocate
    std::int64_t unfreed = 0;   // nodes that allocate, less those that free
};

CUresult shape_of(const driver::Api& api, CUgraph graph, std::uint32_t most_nodes, GraphShape& shape);
CUresult nodes_of(const driver::Api& api, CUgraph graph, std::vector<CUgraphNode>& nodes);
// The graph within a node; null where there is none.
CUresult child_of(const driver::Api& api, CUgraphNode node, CUgraph& child);

}  // namespace gpupool::worker
