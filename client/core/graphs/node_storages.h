// Memory behind the pointers that cuGraph*NodeGetParams returns. On a local driver the node owns it.
//
// It lives as long as its node, or as the graph that the node is known to belong to. Storage of nodes whose graph is
// unknown, such as those that a capture made, is dropped above kMaxUnplacedBytes, the oldest first.
//
// Ownership: owns the storages. put() moves a storage without invalidating pointers to the contents of its vectors.
// Threads: any.
// Errors: none.
#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "common/mutex.h"
#include "protocol/calls/cuda_api.h"

namespace gpupool::client {

struct NodeStorage {
    std::vector<unsigned char> payload;
    std::vector<void*> addresses;  // of the kernel parameters in `payload`
    std::vector<CUgraph> graphs;   // of a conditional node
};

class NodeStorages {
  public:
    static constexpr std::size_t kMaxUnplacedBytes = 64u << 20;

    // Replaces the storage of the node. `graph`: null if unknown.
    void put(CUgraphNode node, CUgraph graph, NodeStorage storage);
    void remove(CUgraphNode node);
    void remove(CUgraph graph);
    [[nodiscard]] std::size_t size() const;

  private:
    struct Kept {
        NodeStorage storage;
        CUgraph graph = nullptr;
        std::size_t bytes = 0;
        std::list<CUgraphNode>::iterator unplaced;  // position in unplaced_, if the graph is unknown
    };
    void drop(CUgraphNode node) GP_REQUIRES(mutex_);

    mutable Mutex mutex_;
    std::unordered_map<CUgraphNode, std::unique_ptr<Kept>> by_node_ GP_GUARDED_BY(mutex_);
    std::unordered_map<CUgraph, std::unordered_set<CUgraphNode>> by_graph_ GP_GUARDED_BY(mutex_);
    std::list<CUgraphNode> unplaced_ GP_GUARDED_BY(mutex_);  // oldest first
    std::size_t unplaced_bytes_ GP_GUARDED_BY(mutex_) = 0;
};

}  // namespace gpupool::client
