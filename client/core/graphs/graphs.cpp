#include "client/core/graphs/graphs.h"

#include <algorithm>
#include <vector>

#include "protocol/calls/graph_node.h"

namespace gpupool::client {

void Graphs::add(CUgraph graph) {
    const Lock lock(mutex_);
    graphs_.try_emplace(graph);
}

bool Graphs::remove(CUgraph graph) {
    const Lock lock(mutex_);
    const auto it = graphs_.find(graph);
    if (it == graphs_.end()) {
        return false;
    }
    for (const CUgraphNode node : it->second) {
        nodes_.erase(node);
    }
    graphs_.erase(it);
    return true;
}

bool Graphs::has(CUgraph graph, const CUgraphNode* nodes, std::size_t count) const {
    {
        const SharedLock lock(mutex_);
        if (!graphs_.contains(graph)) {
            return false;
        }
        const bool all = std::all_of(nodes, nodes + count, [&](CUgraphNode node) GP_REQUIRES_SHARED(mutex_) {
            const auto it = nodes_.find(node);
            return it != nodes_.end() && it->second.graph == graph;
        });
        if (!all || count < 2) {
            return all;
        }
    }
    std::vector<CUgraphNode> sorted(nodes, nodes + count);
    std::sort(sorted.begin(), sorted.end());
    return std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end();
}

bool Graphs::has_room(CUgraph graph) const {
    constexpr std::size_t kMaxOfGraph = kMaxGraphNodes / 2, kMaxOfAll = kMaxGraphNodes;
    const SharedLock lock(mutex_);
    const auto it = graphs_.find(graph);
    return it != graphs_.end() && it->second.size() < kMaxOfGraph && nodes_.size() < kMaxOfAll;
}

void Graphs::add_node(CUgraphNode handle, CUgraph graph, CUgraphNodeType type, CUfunction function) {
    const Lock lock(mutex_);
    const auto it = graphs_.find(graph);
    if (it != graphs_.end()) {
        it->second.insert(handle);
        nodes_[handle] = {graph, type, function, next_++};
    }
}

void Graphs::forget_node(CUgraphNode handle) {
    const Lock lock(mutex_);
    const auto it = nodes_.find(handle);
    if (it == nodes_.end()) {
        return;
    }
    if (const auto graph = graphs_.find(it->second.graph); graph != graphs_.end()) {
        graph->second.erase(handle);
    }
    nodes_.erase(it);
}

std::optional<Graphs::Node> Graphs::find_node(CUgraphNode handle) const {
    const SharedLock lock(mutex_);
    const auto it = nodes_.find(handle);
    return it == nodes_.end() ? std::nullopt : std::optional(it->second);
}

void Graphs::add_executable(CUgraphExec handle, CUgraph graph) {
    const Lock lock(mutex_);
    executables_[handle] = {graph, next_++};
}

bool Graphs::remove_executable(CUgraphExec handle) {
    const Lock lock(mutex_);
    return executables_.erase(handle) != 0;
}

bool Graphs::has_executable(CUgraphExec handle) const {
    const SharedLock lock(mutex_);
    return executables_.contains(handle);
}

void Graphs::note_updated(CUgraphExec handle) {
    const Lock lock(mutex_);
    if (const auto it = executables_.find(handle); it != executables_.end()) {
        it->second.graph = nullptr;
        it->second.needs_room = true;
    }
}

bool Graphs::needs_room(CUgraphExec handle) const {
    const SharedLock lock(mutex_);
    const auto it = executables_.find(handle);
    return it != executables_.end() && it->second.needs_room;
}

void Graphs::note_needs_room(CUgraphExec handle, bool needed) {
    const Lock lock(mutex_);
    if (const auto it = executables_.find(handle); it != executables_.end()) {
        it->second.needs_room = needed;
    }
}

bool Graphs::holds(CUgraphExec handle, const Node& node) const {
    const SharedLock lock(mutex_);
    const auto it = executables_.find(handle);
    return it != executables_.end() && it->second.graph == node.graph && node.added < it->second.made;
}

}  // namespace gpupool::client
