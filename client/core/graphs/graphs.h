// The program's graphs as the client knows them: enough to say of most additions and changes that the driver will take
// them, so that nobody waits for its word (client/calls/graph_verdicts.h).
//
// Known are graphs that the program created or captured, nodes that it added to such a graph by calls whose outcome is
// certain, and executable graphs. Of all others, and of those that somebody may change unseen, only the server knows.
//
// Threads: any. Errors: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "common/mutex.h"
#include "protocol/calls/cuda_api.h"

namespace gpupool::client {

class Graphs {
  public:
    struct Node {
        CUgraph graph = nullptr;
        CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
        CUfunction function = nullptr;  // of a kernel's node
        std::uint64_t added = 0;        // nodes and executables are numbered as they are made
    };

    void add(CUgraph graph);
    // False where it is not known. Its nodes are forgotten with it.
    bool remove(CUgraph graph);
    // Is the graph known, and are all `count` its nodes, none of them twice?
    [[nodiscard]] bool has(CUgraph graph, const CUgraphNode* nodes, std::size_t count) const;
    // May a node be added to it without coming near to what a server takes (protocol/calls/graph_node.h)?
    [[nodiscard]] bool has_room(CUgraph graph) const;

    void add_node(CUgraphNode handle, CUgraph graph, CUgraphNodeType type, CUfunction function);
    // The node has ended, or may have become another than it was added as.
    void forget_node(CUgraphNode handle);
    [[nodiscard]] std::optional<Node> find_node(CUgraphNode handle) const;

    void add_executable(CUgraphExec handle, CUgraph graph);
    bool remove_executable(CUgraphExec handle);
    [[nodiscard]] bool has_executable(CUgraphExec handle) const;
    // It may have become another than its graph says.
    void note_updated(CUgraphExec handle);
    // Does the executable surely hold the node as it was added?
    [[nodiscard]] bool holds(CUgraphExec handle, const Node& node) const;

  private:
    struct Executable {
        CUgraph graph = nullptr;  // null: not known any more
        std::uint64_t made = 0;
    };

    mutable SharedMutex mutex_;
    std::uint64_t next_ GP_GUARDED_BY(mutex_) = 1;
    std::unordered_map<CUgraph, std::unordered_set<CUgraphNode>> graphs_ GP_GUARDED_BY(mutex_);
    std::unordered_map<CUgraphNode, Node> nodes_ GP_GUARDED_BY(mutex_);
    std::unordered_map<CUgraphExec, Executable> executables_ GP_GUARDED_BY(mutex_);
};

}  // namespace gpupool::client
