#include "server/worker/graph_contents.h"

#include "server/worker/graph_shape.h"

namespace gpupool::worker {

void GraphContents::add(const driver::Api& api, CUgraph graph, unsigned level) {
    graphs.push_back(graph);
    std::vector<CUgraphNode> own;
    nodes_of(api, graph, own);
    nodes.insert(nodes.end(), own.begin(), own.end());
    for (const CUgraphNode node : own) {
        add_child(api, node, level);
    }
}

void GraphContents::add_child(const driver::Api& api, CUgraphNode node, unsigned level) {
    CUgraph child = nullptr;
    if (level < kMaxGraphDepth && child_of(api, node, child) == CUDA_SUCCESS && child != nullptr) {
        add(api, child, level + 1);
    }
}

void GraphContents::forget(Worker& worker) const {
    for (const CUgraphNode node : nodes) {
        worker.graphs.unchanged.erase(node);
        worker.handles.forget_driver(node);
    }
    for (const CUgraph graph : graphs) {
        if (const auto added = worker.graphs.added_nodes.find(graph); added != worker.graphs.added_nodes.end()) {
            worker.graphs.all_added_nodes -= added->second;
            worker.graphs.added_nodes.erase(added);
        }
        worker.graphs.levels.erase(graph);
        worker.graphs.failed.erase(graph);
        worker.graphs.full.erase(graph);
        worker.handles.forget_driver(graph);
    }
}

CUresult failure_of(const Worker& worker, CUgraph graph) {
    const GraphBook& book = worker.graphs;
    if (const auto failed = book.failed.find(graph); failed != book.failed.end()) {
        return failed->second;
    }
    if (book.unchanged.empty()) {
        return CUDA_SUCCESS;
    }
    GraphContents contents;
    contents.add(worker.api, graph);
    for (const CUgraphNode node : contents.nodes) {
        if (const auto failed = book.unchanged.find(node); failed != book.unchanged.end()) {
            return failed->second;
        }
    }
    return CUDA_SUCCESS;
}

}  // namespace gpupool::worker
