// The wire form of a graph node's parameters, for nodes of every type: the content of the driver's CUDA_*_NODE_PARAMS
// without the pointers. Data of variable size (kernel arguments, memory operations, access descriptors) follows as the
// call's payload.
//
// Memory and functions of the client's process are referred to by names, not addresses: a server can ask only for names
// that the client issued (client/core/graphs/graph_hosts.h), and a name is never an address of the server's process.
#pragma once

#include <cstdint>

#include "protocol/calls/cuda_api.h"
#include "protocol/calls/members.h"

namespace gpupool {

// How many nodes may be added to one graph of a server.
inline constexpr std::uint32_t kMaxGraphNodes = 1u << 18;

// A node of any type; the type determines which fields are used.
struct GraphNode {
    std::int32_t type = 0;    // CUgraphNodeType
    std::uint32_t count = 0;  // number of memory operations, access descriptors, or graphs of a conditional node
    CUcontext context = nullptr;
    CUfunction function = nullptr;
    std::uint32_t grid_x = 0, grid_y = 0, grid_z = 0;
    std::uint32_t block_x = 0, block_y = 0, block_z = 0;
    std::uint32_t shared_bytes = 0;
    std::uint32_t flags = 0;          // of memory operations; of a child graph its ownership
    CUDA_MEMCPY3D copy{};             // a host side is given as a name of host memory
    std::uint64_t address = 0;        // memset, memory to free, memory allocated
    std::uint64_t pitch_bytes = 0;    // memset
    std::uint32_t value = 0;          // memset
    std::uint32_t element_bytes = 0;  // memset
    std::uint64_t width = 0, height = 0;
    std::uint64_t host_function = 0;
    CUgraph graph = nullptr;
    CUevent event = nullptr;
    CUmemPoolProps pool{};    // memory to allocate
    std::uint64_t bytes = 0;  // of the memory to allocate
    std::uint64_t condition = 0;
    std::int32_t condition_type = 0;
    std::uint32_t reserved = 0;
};
GP_MEMBERS(GraphNode, type, count, context, function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes,
           flags, copy, address, pitch_bytes, value, element_bytes, width, height, host_function, graph, event, pool,
           bytes, condition, condition_type, reserved);

// Whether a node of this type owns something (memory or graphs) that the driver chooses and returns to the program.
// Such a node is added with gpGraphAddOwningNode, every other with gpGraphAddNode.
constexpr bool is_owning_node(std::int32_t type) {
    return type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || type == CU_GRAPH_NODE_TYPE_CONDITIONAL;
}

// The driver requires an address where the wire form has a name of host memory. Names lie at 16 TiB and above, in a
// range that neither programs nor drivers use.
inline constexpr std::uint64_t kHostMemoryNames = 0x100000000000;
inline constexpr unsigned kHostMemoryNameShift = 12;
inline constexpr std::uint64_t kMaxHostMemoryNames = 1u << 24;

constexpr std::uint64_t host_memory_name(std::uint64_t number) {
    return kHostMemoryNames + (number << kHostMemoryNameShift);
}
constexpr bool is_host_memory_name(std::uint64_t address) {
    return address >= kHostMemoryNames && address < host_memory_name(kMaxHostMemoryNames) &&
           (address & ((1u << kHostMemoryNameShift) - 1)) == 0;
}
constexpr std::uint64_t host_memory_number(std::uint64_t name) {
    return (name - kHostMemoryNames) >> kHostMemoryNameShift;
}

}  // namespace gpupool
