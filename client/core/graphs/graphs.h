// What the client knows of the program's graphs: enough to say of most additions and changes that the driver will
// accept them, so that they need no round trip (client/calls/graph_verdicts.h).
//
// It knows graphs that the program created or captured, nodes that calls of certain outcome added to them, and
// executable graphs. Only the server knows all others, and those that may have changed without the client.
//
// Ownership: values.
// Threads: any.
// Errors: none.
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
        CUfunction function = nullptr;  // of a kernel node
        std::uint64_t added = 0;        // sequence number, shared with Executable::made
    };

    void add(CUgraph graph);
    // Forgets the graph and its nodes. False if it is not known.
    bool remove(CUgraph graph);
    // Is the graph known, and are all `count` nodes known nodes of it, without duplicates?
    [[nodiscard]] bool has(CUgraph graph, const CUgraphNode* nodes, std::size_t count) const;
    // May the client add a node without asking the server? True while the graph is well below the server's limit
    // (protocol/calls/graph_node.h).
    [[nodiscard]] bool has_room(CUgraph graph) const;

    void add_node(CUgraphNode handle, CUgraph graph, CUgraphNodeType type, CUfunction function);
    // The node was destroyed, or may differ from what was added.
    void forget_node(CUgraphNode handle);
    [[nodiscard]] std::optional<Node> find_node(CUgraphNode handle) const;

    void add_executable(CUgraphExec handle, CUgraph graph);
    bool remove_executable(CUgraphExec handle);
    [[nodiscard]] bool has_executable(CUgraphExec handle) const;
    // The executable may now differ from the graph that it was made of.
    void note_updated(CUgraphExec handle);
    // Does a launch have to ask the server for room first? An update may change that.
    [[nodiscard]] bool needs_room(CUgraphExec handle) const;
    void note_needs_room(CUgraphExec handle, bool needed);
    // Does the executable certainly contain the node as it was added?
    [[nodiscard]] bool holds(CUgraphExec handle, const Node& node) const;

  private:
    struct Executable {
        CUgraph graph = nullptr;  // null: unknown since an update
        std::uint64_t made = 0;
        bool needs_room = true;
    };

    mutable SharedMutex mutex_;
    std::uint64_t next_ GP_GUARDED_BY(mutex_) = 1;
    std::unordered_map<CUgraph, std::unordered_set<CUgraphNode>> graphs_ GP_GUARDED_BY(mutex_);
    std::unordered_map<CUgraphNode, Node> nodes_ GP_GUARDED_BY(mutex_);
    std::unordered_map<CUgraphExec, Executable> executables_ GP_GUARDED_BY(mutex_);
};

}  // namespace gpupool::client
