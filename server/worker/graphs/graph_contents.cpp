#include "server/worker/graphs/graph_contents.h"

#include <utility>

#include "server/worker/graphs/graph_shape.h"

namespace gpupool::worker {

void GraphContents::add(const Worker& worker, CUgraph graph, unsigned level) {
    graphs.push_back(graph);
    std::vector<CUgraphNode> own;
    nodes_of(worker.api, graph, own);
    nodes.insert(nodes.end(), own.begin(), own.end());
    for (const CUgraphNode node : own) {
        add_children(worker, node, level);
    }
}

void GraphContents::add_children(const Worker& worker, CUgraphNode node, unsigned level) {
    if (level >= kMaxGraphDepth) {
        return;
    }
    CUgraph child = nullptr;
    if (child_of(worker.api, node, child) == CUDA_SUCCESS && child != nullptr) {
        add(worker, child, level + 1);
    }
    if (const auto own = worker.graphs.bodies.find(node); own != worker.graphs.bodies.end()) {
        bodies.insert(bodies.end(), own->second.begin(), own->second.end());
        for (const CUgraph body : own->second) {
            add(worker, body, level + 1);
        }
    }
}

void GraphContents::forget(Worker& worker) const {
    for (const CUgraphNode node : nodes) {
        worker.graphs.failed_changes.erase(node);
        worker.graphs.bodies.erase(node);
        worker.graphs.stand_ins.forget(node);
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

ExpansionParts take_parts(Worker& worker, const ContextState& context, CUgraph graph) {
    GraphBook& book = worker.graphs;
    ExpansionParts parts;
    parts.kernels = &book.step_kernels;
    parts.context = context.number;
    if (book.bodies.empty() && book.stand_ins.by_node.empty()) {
        return parts;
    }
    GraphContents contents;
    contents.add(worker, graph);
    parts.bodies = std::move(contents.bodies);
    for (const CUgraphNode node : contents.nodes) {
        if (const auto known = book.stand_ins.by_node.find(node); known != book.stand_ins.by_node.end()) {
            for (const CUgraphNode hidden : {known->second.before, known->second.after}) {
                if (book.stand_ins.hidden.erase(hidden) != 0) {
                    parts.stand_ins.hidden.insert(hidden);
                }
            }
            parts.stand_ins.by_node.insert(*known);
            book.stand_ins.by_node.erase(known);
        }
    }
    return parts;
}

void put_stand_ins(Worker& worker, const ExpansionParts& parts) {
    worker.graphs.stand_ins.by_node.insert(parts.stand_ins.by_node.begin(), parts.stand_ins.by_node.end());
    worker.graphs.stand_ins.hidden.insert(parts.stand_ins.hidden.begin(), parts.stand_ins.hidden.end());
}

CUresult failure_of(const Worker& worker, CUgraph graph) {
    const GraphBook& book = worker.graphs;
    if (const auto failed = book.failed.find(graph); failed != book.failed.end()) {
        return failed->second;
    }
    if (book.failed_changes.empty() && book.bodies.empty()) {
        return CUDA_SUCCESS;
    }
    GraphContents contents;
    contents.add(worker, graph);
    // An error of a child graph was returned when it was added; a conditional node's graph gets its nodes afterwards.
    for (const CUgraph body : contents.bodies) {
        if (const auto failed = book.failed.find(body); failed != book.failed.end()) {
            return failed->second;
        }
    }
    for (const CUgraphNode node : contents.nodes) {
        if (const auto failed = book.failed_changes.find(node); failed != book.failed_changes.end()) {
            return failed->second;
        }
    }
    return CUDA_SUCCESS;
}

}  // namespace gpupool::worker
