// How the graph entry points resolve handles and return lists.
//
// Threads: SOFTGPU_GRAPHS() holds graph_mutex() until the end of the entry point. Errors: CUresult.
#pragma once

#include <algorithm>

#include "server/softgpu/graph/executable.h"

namespace gpupool::softgpu {

inline CUgraphNode handle_of(const Node* node) {
    return reinterpret_cast<CUgraphNode>(const_cast<Node*>(node));
}

// Returns a list as CUDA's queries do: without room only the count; with more room than needed the rest is cleared.
template <class T, class Get>
CUresult copy_list(const std::vector<T>& list, size_t* count, bool has_room, Get put) {
    if (!has_room) {
        *count = list.size();
        return CUDA_SUCCESS;
    }
    for (std::size_t i = 0; i < *count; ++i) {
        put(i, i < list.size() ? &list[i] : nullptr);
    }
    *count = std::min(*count, list.size());
    return CUDA_SUCCESS;
}

inline CUresult give_nodes(const std::vector<Node*>& list, CUgraphNode* nodes, size_t* count) {
    return copy_list(list, count, nodes != nullptr, [&](std::size_t i, Node* const* node) {
        nodes[i] = node == nullptr ? nullptr : handle_of(*node);
    });
}

// Resolves handles to nodes of one graph. Returns false if a handle is invalid or occurs twice.
inline bool find_dependencies(const Graph& graph, const CUgraphNode* handles, size_t count,
                              std::vector<Node*>& result) {
    if (handles == nullptr && count != 0) {
        return false;
    }
    for (size_t i = 0; i < count; ++i) {
        const auto node = graphs().nodes.find(handles[i]);
        if (node == nullptr || node->graph != &graph) {
            return false;
        }
        if (std::find(result.begin(), result.end(), node.get()) != result.end()) {
            return false;
        }
        result.push_back(node.get());
    }
    return true;
}

// Only a kernel may have a port other than the default, for programmatic launches.
inline bool good_edges(const CUgraphEdgeData* edges, size_t count) {
    return edges == nullptr || std::all_of(edges, edges + count, [](const CUgraphEdgeData& edge) {
               return edge.from_port <= 2 && edge.to_port == 0 && edge.type <= 1;
           });
}

// Runs `make`, which takes graph_mutex() and returns the plan that it made, if any. Then provides the local memory that
// the plan's kernels need.
template <class Make>
CUresult with_local_room(Make make) {
    std::shared_ptr<const Plan> plan;
    const CUresult result = make(plan);
    const bool room = plan == nullptr || Executable::make_local_room(*plan);
    return result == CUDA_SUCCESS && !room ? CUDA_ERROR_OUT_OF_MEMORY : result;
}

}  // namespace gpupool::softgpu

#define SOFTGPU_GRAPHS() \
    SOFTGPU_READY();     \
    const Lock graphs_lock_(::gpupool::softgpu::graph_mutex())
#define SOFTGPU_GRAPH(handle, name)                 \
    const auto name = graphs().graphs.find(handle); \
    if (name == nullptr) return CUDA_ERROR_INVALID_VALUE
#define SOFTGPU_NODE(handle, name)                 \
    const auto name = graphs().nodes.find(handle); \
    if (name == nullptr) return CUDA_ERROR_INVALID_VALUE
#define SOFTGPU_EXECUTABLE(handle, name)                 \
    const auto name = graphs().executables.find(handle); \
    if (name == nullptr) return CUDA_ERROR_INVALID_VALUE
