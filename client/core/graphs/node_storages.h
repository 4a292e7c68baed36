// What the calls that ask for a graph node's parameters point to, which natively belongs to the node.
//
// Goes with its node, or with the graph that the node is known to be of. Of nodes whose graph is not known, as of those
// that a capture made, the latest kMaxUnplacedBytes stay.
// Ownership: owns what is put here; pointers into it, which are taken before, stay valid. Threads: any. Errors: none.
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
    std::vector<void*> addresses;  // of the parameters in it
    std::vector<CUgraph> graphs;   // a conditional node's
};

class NodeStorages {
  public:
    static constexpr std::size_t kMaxUnplacedBytes = 64u << 20;

    // In place of what the node had. `graph`: null where it is not known.
    void put(CUgraphNode node, CUgraph graph, NodeStorage storage);
    void remove(CUgraphNode node);
    void remove(CUgraph graph);
    [[nodiscard]] std::size_t size() const;

  private:
    struct Kept {
        NodeStorage storage;
        CUgraph graph = nullptr;
        std::size_t bytes = 0;
        std::list<CUgraphNode>::iterator unplaced;  // where the graph is not known
    };
    void drop(CUgraphNode node) GP_REQUIRES(mutex_);

    mutable Mutex mutex_;
    std::unordered_map<CUgraphNode, std::unique_ptr<Kept>> by_node_ GP_GUARDED_BY(mutex_);
    std::unordered_map<CUgraph, std::unordered_set<CUgraphNode>> by_graph_ GP_GUARDED_BY(mutex_);
    std::list<CUgraphNode> unplaced_ GP_GUARDED_BY(mutex_);  // in the order in which they came
    std::size_t unplaced_bytes_ GP_GUARDED_BY(mutex_) = 0;
};

}  // namespace gpupool::client
