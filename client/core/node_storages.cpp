#include "client/core/node_storages.h"

#include <utility>

namespace gpupool::client {

NodeStorage& NodeStorages::put(CUgraphNode node, CUgraph graph, NodeStorage storage) {
    const std::lock_guard lock(mutex_);
    std::unique_ptr<Kept>& kept = by_node_[node];
    if (kept == nullptr) {
        kept = std::make_unique<Kept>();
        kept->graph = graph;
        if (graph == nullptr) {
            kept->unplaced = unplaced_.insert(unplaced_.end(), node);
        } else {
            by_graph_[graph].push_back(node);
        }
    }
    const std::size_t before = std::exchange(kept->bytes, sizeof(Kept) + storage.payload.capacity() +
                                                              storage.addresses.capacity() * sizeof(void*) +
                                                              storage.graphs.capacity() * sizeof(CUgraph));
    kept->storage = std::move(storage);
    NodeStorage& result = kept->storage;
    if (kept->graph == nullptr) {
        unplaced_bytes_ += kept->bytes - before;
        while (unplaced_bytes_ > kMostUnplaced_bytes && unplaced_.front() != node) {
            drop(unplaced_.front());
        }
    }
    return result;
}

// Where it is still there.
void NodeStorages::drop(CUgraphNode node) {
    const auto it = by_node_.find(node);
    if (it == by_node_.end()) {
        return;
    }
    if (it->second->graph == nullptr) {
        unplaced_bytes_ -= it->second->bytes;
        unplaced_.erase(it->second->unplaced);
    }
    by_node_.erase(it);
}

void NodeStorages::remove(CUgraphNode node) {
    const std::lock_guard lock(mutex_);
    drop(node);
}

void NodeStorages::remove(CUgraph graph) {
    const std::lock_guard lock(mutex_);
    if (const auto it = by_graph_.find(graph); it != by_graph_.end()) {
        for (const CUgraphNode node : it->second) {
            drop(node);
        }
        by_graph_.erase(it);
    }
}

std::size_t NodeStorages::size() const {
    const std::lock_guard lock(mutex_);
    return by_node_.size();
}

}  // namespace gpupool::client
