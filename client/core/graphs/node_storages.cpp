#include "client/core/graphs/node_storages.h"

#include <utility>

namespace gpupool::client {

void NodeStorages::put(CUgraphNode node, CUgraph graph, NodeStorage storage) {
    const Lock lock(mutex_);
    std::unique_ptr<Kept>& kept = by_node_[node];
    if (kept == nullptr) {
        kept = std::make_unique<Kept>();
        kept->graph = graph;
        if (graph == nullptr) {
            kept->unplaced = unplaced_.insert(unplaced_.end(), node);
        } else {
            by_graph_[graph].insert(node);
        }
    }
    const std::size_t before = std::exchange(kept->bytes, sizeof(Kept) + storage.payload.capacity() +
                                                              storage.addresses.capacity() * sizeof(void*) +
                                                              storage.graphs.capacity() * sizeof(CUgraph));
    kept->storage = std::move(storage);
    if (kept->graph == nullptr) {
        unplaced_bytes_ += kept->bytes - before;
        while (unplaced_bytes_ > kMaxUnplacedBytes && unplaced_.front() != node) {
            drop(unplaced_.front());
        }
    }
}

// Does nothing if the node has no storage.
void NodeStorages::drop(CUgraphNode node) {
    const auto it = by_node_.find(node);
    if (it == by_node_.end()) {
        return;
    }
    if (it->second->graph == nullptr) {
        unplaced_bytes_ -= it->second->bytes;
        unplaced_.erase(it->second->unplaced);
    } else if (const auto of = by_graph_.find(it->second->graph); of != by_graph_.end()) {
        of->second.erase(node);
    }
    by_node_.erase(it);
}

void NodeStorages::remove(CUgraphNode node) {
    const Lock lock(mutex_);
    drop(node);
}

void NodeStorages::remove(CUgraph graph) {
    const Lock lock(mutex_);
    if (const auto of = by_graph_.extract(graph)) {
        for (const CUgraphNode node : of.mapped()) {
            drop(node);
        }
    }
}

std::size_t NodeStorages::size() const {
    const Lock lock(mutex_);
    return by_node_.size();
}

}  // namespace gpupool::client
