// Graphs: creation and destruction, nodes and edges.
#include "server/softgpu/api/graph_handles.h"
#include "server/softgpu/graph/dot.h"

using namespace gpupool::softgpu;

namespace {

struct Edge {
    Node* from;
    Node* to;
};

std::vector<Edge> edges_of(const Graph& graph) {
    std::vector<Edge> result;
    for (const auto& node : graph.nodes) {
        for (Node* to : node->dependents) {
            result.push_back({node.get(), to});
        }
    }
    return result;
}

std::vector<Node*> nodes_of(const Graph& graph) {
    std::vector<Node*> result;
    for (const auto& node : graph.nodes) {
        result.push_back(node.get());
    }
    return result;
}

CUresult get_edges(CUgraph handle, CUgraphNode* from, CUgraphNode* to, CUgraphEdgeData* data, size_t* count) {
    SOFTGPU_GRAPHS();
    SOFTGPU_GRAPH(handle, graph);
    if (count == nullptr || (from == nullptr) != (to == nullptr) || (data != nullptr && from == nullptr)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return copy_list(edges_of(*graph), count, from != nullptr, [&](std::size_t i, const Edge* edge) {
        from[i] = edge == nullptr ? nullptr : handle_of(edge->from);
        to[i] = edge == nullptr ? nullptr : handle_of(edge->to);
        if (data != nullptr) {
            data[i] = {};
        }
    });
}

CUresult get_neighbours(CUgraphNode handle, bool before, CUgraphNode* nodes, CUgraphEdgeData* data, size_t* count) {
    SOFTGPU_GRAPHS();
    SOFTGPU_NODE(handle, node);
    if (count == nullptr || (data != nullptr && nodes == nullptr)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (data != nullptr) {
        std::fill_n(data, *count, CUgraphEdgeData{});
    }
    return give_nodes(before ? node->dependencies : node->dependents, nodes, count);
}

CUresult change_edges(CUgraph handle, const CUgraphNode* from, const CUgraphNode* to, const CUgraphEdgeData* data,
                      size_t count, bool add) {
    SOFTGPU_GRAPHS();
    SOFTGPU_GRAPH(handle, graph);
    if (count != 0 && (from == nullptr || to == nullptr)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!good_edges(data, count)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    std::vector<Edge> edges;
    for (size_t i = 0; i < count; ++i) {
        const auto a = graphs().nodes.find(from[i]), b = graphs().nodes.find(to[i]);
        if (a == nullptr || b == nullptr || a == b || a->graph != graph.get() || b->graph != graph.get()) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        if (!add && graph->holds_memory_nodes()) {
            return CUDA_ERROR_NOT_SUPPORTED;
        }
        const bool twice = std::any_of(edges.begin(), edges.end(),
                                       [&](const Edge& e) { return e.from == a.get() && e.to == b.get(); });
        if (twice || graph->has_edge(*a, *b) == add) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        edges.push_back({a.get(), b.get()});
    }
    for (const Edge& edge : edges) {
        if (add) {
            graph->add_edge(*edge.from, *edge.to);
        } else {
            graph->remove_edge(*edge.from, *edge.to);
        }
    }
    return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

CUresult CUDAAPI cuGraphCreate(CUgraph* result, unsigned flags) {
    SOFTGPU_GRAPHS();
    if (result == nullptr || flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    auto graph = std::make_shared<Graph>();
    graph->id = state().next_id.fetch_add(1);
    graphs().graphs.add(graph);
    *result = reinterpret_cast<CUgraph>(graph.get());
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphDestroy(CUgraph handle) {
    SOFTGPU_GRAPHS();
    SOFTGPU_GRAPH(handle, graph);
    if (graph->is_child || graph->capturing) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    graphs().graphs.remove(handle);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphClone(CUgraph* result, CUgraph handle) {
    SOFTGPU_GRAPHS();
    SOFTGPU_GRAPH(handle, graph);
    if (result == nullptr || graph->capturing) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (graph->holds_memory_nodes() || graph->holds_conditional_nodes()) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    const GraphPtr clone = graph->clone(true);
    graphs().graphs.add(clone);
    *result = reinterpret_cast<CUgraph>(clone.get());
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphConditionalHandleCreate(CUgraphConditionalHandle* result, CUgraph handle, CUcontext context,
                                                unsigned default_value, unsigned flags) {
    SOFTGPU_GRAPHS();
    SOFTGPU_GRAPH(handle, graph);
    if (result == nullptr || (flags & ~unsigned{CU_GRAPH_COND_ASSIGN_DEFAULT}) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (state().contexts.find(context) == nullptr) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    graph->conditions->push_back(std::make_shared<GraphCondition>(default_value, flags));
    *result = graph->conditions->back()->handle();
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphNodeFindInClone(CUgraphNode* result, CUgraphNode original, CUgraph clone) {
    SOFTGPU_GRAPHS();
    SOFTGPU_NODE(original, node);
    SOFTGPU_GRAPH(clone, graph);
    SOFTGPU_NOT_NULL(result);
    for (const auto& candidate : graph->nodes) {
        if (candidate->origin != node->id) {
            continue;
        }
        *result = handle_of(candidate.get());
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuGraphNodeGetType(CUgraphNode handle, CUgraphNodeType* type) {
    SOFTGPU_GRAPHS();
    SOFTGPU_NODE(handle, node);
    SOFTGPU_NOT_NULL(type);
    *type = type_of(*node->payload);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphGetNodes(CUgraph handle, CUgraphNode* nodes, size_t* count) {
    SOFTGPU_GRAPHS();
    SOFTGPU_GRAPH(handle, graph);
    SOFTGPU_NOT_NULL(count);
    return give_nodes(nodes_of(*graph), nodes, count);
}

CUresult CUDAAPI cuGraphGetRootNodes(CUgraph handle, CUgraphNode* nodes, size_t* count) {
    SOFTGPU_GRAPHS();
    SOFTGPU_GRAPH(handle, graph);
    SOFTGPU_NOT_NULL(count);
    return give_nodes(graph->roots(), nodes, count);
}

CUresult CUDAAPI cuGraphGetEdges(CUgraph graph, CUgraphNode* from, CUgraphNode* to, size_t* count) {
    return get_edges(graph, from, to, nullptr, count);
}
CUresult CUDAAPI cuGraphGetEdges_v2(CUgraph graph, CUgraphNode* from, CUgraphNode* to, CUgraphEdgeData* data,
                                    size_t* count) {
    return get_edges(graph, from, to, data, count);
}

CUresult CUDAAPI cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode* nodes, size_t* count) {
    return get_neighbours(node, true, nodes, nullptr, count);
}
CUresult CUDAAPI cuGraphNodeGetDependencies_v2(CUgraphNode node, CUgraphNode* nodes, CUgraphEdgeData* data,
                                               size_t* count) {
    return get_neighbours(node, true, nodes, data, count);
}
CUresult CUDAAPI cuGraphNodeGetDependentNodes(CUgraphNode node, CUgraphNode* nodes, size_t* count) {
    return get_neighbours(node, false, nodes, nullptr, count);
}
CUresult CUDAAPI cuGraphNodeGetDependentNodes_v2(CUgraphNode node, CUgraphNode* nodes, CUgraphEdgeData* data,
                                                 size_t* count) {
    return get_neighbours(node, false, nodes, data, count);
}

CUresult CUDAAPI cuGraphAddDependencies(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to, size_t count) {
    return change_edges(graph, from, to, nullptr, count, true);
}
CUresult CUDAAPI cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                                           const CUgraphEdgeData* data, size_t count) {
    return change_edges(graph, from, to, data, count, true);
}
CUresult CUDAAPI cuGraphRemoveDependencies(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                                           size_t count) {
    return change_edges(graph, from, to, nullptr, count, false);
}
CUresult CUDAAPI cuGraphRemoveDependencies_v2(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                                              const CUgraphEdgeData* data, size_t count) {
    return change_edges(graph, from, to, data, count, false);
}

CUresult CUDAAPI cuGraphDestroyNode(CUgraphNode handle) {
    SOFTGPU_GRAPHS();
    SOFTGPU_NODE(handle, node);
    // Nothing can be removed from a graph with memory of its own.
    if (node->graph->holds_memory_nodes()) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    node->graph->remove(*node);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphDebugDotPrint(CUgraph handle, const char* path, unsigned) {
    std::string text;
    {
        SOFTGPU_GRAPHS();
        SOFTGPU_GRAPH(handle, graph);
        SOFTGPU_NOT_NULL(path);
        text = dot_text(*graph);
    }
    return write_file(path, text) ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

}  // extern "C"
