// The size of a graph, including graphs within it.
//
// The driver copies a child graph when it is added, so a few calls that each add a graph twice to the next would make a
// graph of any size or depth. Graphs beyond the limits are refused before they are made.
//
// Threads: any.
// Errors: the driver's; CUDA_ERROR_OUT_OF_MEMORY beyond the limits.
#pragma once

#include <cstdint>
#include <vector>

#include "protocol/calls/graph_node.h"
#include "server/driver/api.h"
#include "server/worker/graphs/graph_memory.h"

namespace gpupool::worker {

inline constexpr std::uint32_t kMaxGraphNodesAtAll = 8u << 20;  // also of a captured graph
inline constexpr unsigned kMaxGraphDepth = 64;

struct GraphShape {
    std::uint32_t nodes = 0;
    unsigned depth = 0;         // nesting depth; 1: no graphs within
    bool needs_client = false;  // has a node that becomes a client step
    BytesByDevice memory;       // what its nodes allocate
    std::int64_t unfreed = 0;   // allocation nodes minus free nodes
    bool has_memory = false;    // has nodes that allocate or free
};

// Of one side of a copy node. The client may have sent a value that is no enumerator.
bool is_host(const CUmemorytype& type);

CUresult shape_of(const driver::Api& api, CUgraph graph, std::uint32_t most_nodes, GraphShape& shape);
CUresult nodes_of(const driver::Api& api, CUgraph graph, std::vector<CUgraphNode>& nodes);
// The child graph of a node; null if there is none.
CUresult child_of(const driver::Api& api, CUgraphNode node, CUgraph& child);

}  // namespace gpupool::worker
