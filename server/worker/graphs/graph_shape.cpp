#include "server/worker/graphs/graph_shape.h"

#include <algorithm>

#include "protocol/codec/struct_traits.h"

namespace gpupool::worker {
namespace {

CUresult add_shape(const driver::Api& api, CUgraph graph, unsigned depth, std::uint32_t most_nodes, GraphShape& shape) {
    if (depth > kMaxGraphDepth) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    shape.depth = std::max(shape.depth, depth);
    std::vector<CUgraphNode> nodes;
    CUresult result = nodes_of(api, graph, nodes);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (nodes.size() > most_nodes - shape.nodes) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    shape.nodes += static_cast<std::uint32_t>(nodes.size());
    for (const CUgraphNode node : nodes) {
        CUgraphNodeType type{};
        CUgraph child = nullptr;
        result = driver::call(api.cuGraphNodeGetType, node, &type);
        if (result == CUDA_SUCCESS && type == CU_GRAPH_NODE_TYPE_HOST) {
            shape.needs_client = true;
        } else if (result == CUDA_SUCCESS && type == CU_GRAPH_NODE_TYPE_MEMCPY && !shape.needs_client) {
            CUDA_MEMCPY3D copy{};
            result = driver::call(api.cuGraphMemcpyNodeGetParams, node, &copy);
            shape.needs_client = is_host(copy.srcMemoryType) || is_host(copy.dstMemoryType);
        } else if (result == CUDA_SUCCESS && type == CU_GRAPH_NODE_TYPE_GRAPH) {
            result = driver::call(api.cuGraphChildGraphNodeGetGraph, node, &child);
            result = result == CUDA_SUCCESS ? add_shape(api, child, depth + 1, most_nodes, shape) : result;
        } else if (result == CUDA_SUCCESS && type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
            CUDA_MEM_ALLOC_NODE_PARAMS allocation{};
            result = driver::call(api.cuGraphMemAllocNodeGetParams, node, &allocation);
            std::uint64_t& bytes = shape.memory[allocation.poolProps.location.id];
            bytes += std::min(~std::uint64_t{0} - bytes, std::uint64_t{allocation.bytesize});
            ++shape.unfreed;
            shape.has_memory = true;
        } else if (result == CUDA_SUCCESS && type == CU_GRAPH_NODE_TYPE_MEM_FREE) {
            --shape.unfreed;
            shape.has_memory = true;
        }
        if (result != CUDA_SUCCESS) {
            return result;
        }
    }
    return CUDA_SUCCESS;
}

}  // namespace

bool is_host(const CUmemorytype& type) {
    return codec::number_of(type) == CU_MEMORYTYPE_HOST;
}

CUresult nodes_of(const driver::Api& api, CUgraph graph, std::vector<CUgraphNode>& nodes) {
    std::size_t count = 0;
    CUresult result = driver::call(api.cuGraphGetNodes, graph, static_cast<CUgraphNode*>(nullptr), &count);
    nodes.resize(result == CUDA_SUCCESS ? count : 0);
    if (!nodes.empty()) {
        result = driver::call(api.cuGraphGetNodes, graph, nodes.data(), &count);
    }
    return result;
}

CUresult child_of(const driver::Api& api, CUgraphNode node, CUgraph& child) {
    CUgraphNodeType type{};
    child = nullptr;
    const CUresult result = driver::call(api.cuGraphNodeGetType, node, &type);
    return result == CUDA_SUCCESS && type == CU_GRAPH_NODE_TYPE_GRAPH
               ? driver::call(api.cuGraphChildGraphNodeGetGraph, node, &child)
               : result;
}

CUresult shape_of(const driver::Api& api, CUgraph graph, std::uint32_t most_nodes, GraphShape& shape) {
    shape = {};
    return add_shape(api, graph, 1, most_nodes, shape);
}

}  // namespace gpupool::worker
