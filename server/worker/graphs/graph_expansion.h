// Puts a graph's client steps into the driver's graph, which is then instantiated.
//
// Where the driver clones the graph, a clone is changed: a host function's node is replaced by memory operations, a
// copy gets memory operations before or behind it. Where it does not (graphs with memory of their own, or with
// conditional nodes), the program's own graph gets the additional nodes, its *stand-ins*, and its copies get other
// parameters until restore(). The driver does not remove nodes from a graph with memory of its own, so there the
// stand-ins stay: they are used again when the graph is instantiated again, and queries of the program do not show them
// (handlers/graph_query.cpp).
//
// Within a conditional node's graphs the driver permits no memory operations. There a kernel of one thread takes their
// place (StepKernels).
//
// Ownership: the driver's graph owns the stand-ins; StandIns only lists them.
// Threads: one at a time; StepKernels any.
// Errors: the driver's.
#pragma once

#include <map>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "common/mutex.h"
#include "server/worker/graphs/client_step.h"

namespace gpupool::worker {

// The stand-ins of nodes of the program's graphs.
struct StandIns {
    struct Pair {
        CUgraphNode before = nullptr, after = nullptr;
    };
    std::unordered_map<CUgraphNode, Pair> by_node;
    std::unordered_set<CUgraphNode> hidden;

    [[nodiscard]] bool hides(CUgraphNode node) const { return hidden.contains(node); }
    void forget(CUgraphNode node) {
        by_node.erase(node);
        hidden.erase(node);
    }
};

// The kernel of client steps, loaded once for each context. Contexts are known by their numbers.
class StepKernels {
  public:
    // The context must be current.
    CUresult find(const driver::Api& api, std::uint64_t context, CUfunction& kernel);

  private:
    Mutex mutex_;
    std::map<std::uint64_t, CUfunction> loaded_ GP_GUARDED_BY(mutex_);
};

// What a graph is expanded with.
struct ExpansionParts {
    StepKernels* kernels = nullptr;
    std::uint64_t context = 0;    // number of the current context
    std::vector<CUgraph> bodies;  // the graphs of its conditional nodes
    StandIns stand_ins;           // in: those that it has; out: those that it keeps
    [[nodiscard]] bool in_place(bool has_memory) const { return has_memory || !bodies.empty(); }
};

class Expansion {
  public:
    // Adds the client steps to `steps`.
    Expansion(const driver::Api& api, PinnedMemory& pinned, ClientSteps& steps)
        : api_(api), pinned_(pinned), steps_(steps) {}
    Expansion(const Expansion&) = delete;
    Expansion& operator=(const Expansion&) = delete;

    // Expands a clone of `graph`, which the caller destroys.
    CUresult expand_clone(CUgraph graph, CUgraph& clone);
    // Expands the graph itself. Call restore() once it is instantiated or that has failed.
    CUresult expand_in_place(CUgraph graph, ExpansionParts& parts);
    void restore(ExpansionParts& parts);

  private:
    enum class Side { before, after };
    struct Place {
        CUgraph graph = nullptr;
        bool in_body = false;
    };

    // `original`: the graph that `clone` was cloned from, or null within a child graph.
    CUresult expand_nodes(CUgraph clone, CUgraph original);
    CUresult replace_function(CUgraph clone, CUgraphNode node, CUgraphNode named);
    CUresult route_copy(CUgraph clone, CUgraphNode node, CUgraphNode named);
    CUresult add_step(ClientStep::Kind kind, CUgraphNode named, ClientStep*& step);

    CUresult accompany_nodes(const Place& place, ExpansionParts& parts);
    CUresult accompany(const Place& place, CUgraphNode node, ExpansionParts& parts);
    CUresult accompany_copy(const Place& place, CUgraphNode node, ExpansionParts& parts);
    CUresult stand_in(const Place& place, CUgraphNode node, Side side, const ClientStep& step, ExpansionParts& parts);
    CUresult set_up(const Place& place, const ClientStep& step, ExpansionParts& parts, CUgraphNode& node);

    const driver::Api& api_;
    PinnedMemory& pinned_;
    ClientSteps& steps_;
    std::vector<std::pair<CUgraphNode, CUDA_MEMCPY3D>> changed_;  // copies with their own parameters
};

// Replaces the client's side of `copy` by packed pinned memory: the step's own if that is large enough.
CUresult stage(PinnedMemory& pinned, CUDA_MEMCPY3D& copy, const ClientStep& step,
               std::shared_ptr<const StepWork>& work);

}  // namespace gpupool::worker
