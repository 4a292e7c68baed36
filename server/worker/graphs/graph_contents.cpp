#include "server/worker/graphs/graph_contents.h"

#include <utility>

#include "server/worker/graphs/graph_book.h"
#include "server/worker/graphs/graph_shape.h"

namespace gpupool::worker {

void GraphContents::add(const GraphView& session, CUgraph graph, unsigned level) {
    graphs.push_back(graph);
    std::vector<CUgraphNode> own;
    nodes_of(session.api, graph, own);
    nodes.insert(nodes.end(), own.begin(), own.end());
    for (const CUgraphNode node : own) {
        add_children(session, node, level);
    }
}

void GraphContents::add_children(const GraphView& session, CUgraphNode node, unsigned level) {
    if (level >= kMaxGraphDepth) {
        return;
    }
    CUgraph child = nullptr;
    if (child_of(session.api, node, child) == CUDA_SUCCESS && child != nullptr) {
        add(session, child, level + 1);
    }
    if (const auto own = session.graphs.bodies.find(node); own != session.graphs.bodies.end()) {
        bodies.insert(bodies.end(), own->second.begin(), own->second.end());
        for (const CUgraph body : own->second) {
            add(session, body, level + 1);
        }
    }
}

void GraphContents::forget(GraphView& session) const {
    for (const CUgraphNode node : nodes) {
        session.graphs.failed_changes.erase(node);
        session.graphs.bodies.erase(node);
        session.graphs.stand_ins.forget(node);
        session.handles.forget_driver(node);
    }
    for (const CUgraph graph : graphs) {
        if (const auto added = session.graphs.added_nodes.find(graph); added != session.graphs.added_nodes.end()) {
            session.graphs.all_added_nodes -= added->second;
            session.graphs.added_nodes.erase(added);
        }
        session.graphs.levels.erase(graph);
        session.graphs.failed.erase(graph);
        session.graphs.full.erase(graph);
        session.handles.forget_driver(graph);
    }
}

ExpansionParts take_parts(GraphView& session, const ContextState& context, CUgraph graph) {
    GraphBook& book = session.graphs;
    ExpansionParts parts;
    parts.kernels = &book.step_kernels;
    parts.context = context.number;
    if (book.bodies.empty() && book.stand_ins.by_node.empty()) {
        return parts;
    }
    GraphContents contents;
    contents.add(session, graph);
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

void put_stand_ins(GraphView& session, const ExpansionParts& parts) {
    session.graphs.stand_ins.by_node.insert(parts.stand_ins.by_node.begin(), parts.stand_ins.by_node.end());
    session.graphs.stand_ins.hidden.insert(parts.stand_ins.hidden.begin(), parts.stand_ins.hidden.end());
}

CUresult failure_of(const GraphView& session, CUgraph graph) {
    const GraphBook& book = session.graphs;
    if (const auto failed = book.failed.find(graph); failed != book.failed.end()) {
        return failed->second;
    }
    if (book.failed_changes.empty() && book.bodies.empty()) {
        return CUDA_SUCCESS;
    }
    GraphContents contents;
    contents.add(session, graph);
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
