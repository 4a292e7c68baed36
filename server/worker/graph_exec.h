// An executable graph, and what of it happens in the client.
//
// The driver's graph describes: host functions and host memory stand in it by their names. To run, it is cloned, and in
// the clone every host function becomes a pair of memory operations (write that its turn has come; wait until it is
// done), and every copy to or from the client's memory goes through pinned memory here, with such a pair before or
// behind it. A graph that has neither is instantiated as it is, and costs nothing.
//
// One launch of an executable begins when the one before has ended (the driver sees to it), so each place has one turn
// at a time.
//
// Ownership: an executable owns its clone, its pinned memory and its words. Threads: made and instantiated on a helper
// thread, then the dispatcher's alone. Errors: the driver's.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "protocol/calls/graph_node.h"
#include "protocol/codec/record.h"
#include "server/driver/api.h"

namespace gpupool::worker {

// A node whose turn the client takes.
struct HostTurn {
    enum class Kind { function, from_client, to_client };
    Kind kind = Kind::function;
    std::uint64_t function = 0;      // as the client named it
    codec::GraphCopyNotice rows{};   // of the client's memory; `transfer` is set with each turn
    std::byte* staging = nullptr;    // pinned; packed rows
    std::uint64_t bytes = 0;
    std::uint32_t* request = nullptr;  // the GPU writes 1 when the turn has come
    std::uint32_t* done = nullptr;     // the GPU waits for 1, and clears it
    CUdeviceptr device_request = 0, device_done = 0;

    // The turn under way; see graph_turns.h.
    bool busy = false;
    std::uint64_t ticket = 0;
    std::uint64_t offset = 0;                       // of what was expected or sent
    std::shared_ptr<std::atomic<unsigned>> flying;  // pieces that are on their way
};

class GraphExec {
  public:
    explicit GraphExec(const driver::Api& api) : api_(api) {}
    ~GraphExec();
    GraphExec(const GraphExec&) = delete;
    GraphExec& operator=(const GraphExec&) = delete;

    // With a current context. `error_node` is one of `graph`'s.
    CUresult instantiate(CUgraph graph, std::uint64_t flags, CUgraphNode& error_node, int& outcome);
    // What the information says of nodes is of `graph`.
    CUresult update(CUgraph graph, CUgraphExecUpdateResultInfo& information);
    // New parameters for what stands for `node` of the graph that this was made from.
    CUresult set(CUgraphNode node, CUgraphNodeParams& parameters);
    // The node that stands for it in the driver's executable.
    CUresult own_node(CUgraphNode node, CUgraphNode& own) const;

    [[nodiscard]] CUgraphExec driver() const { return executable_; }
    // Places that a launch takes in the driver's queue.
    [[nodiscard]] std::uint32_t cost() const { return cost_; }
    [[nodiscard]] std::vector<std::unique_ptr<HostTurn>>& turns() { return now_.turns; }

    unsigned running = 0;  // launches that are not known to have ended
    bool ending = false;   // the client has destroyed it

  private:
    // What was made of one graph.
    struct Expansion {
        CUgraph clone = nullptr;  // null: the graph itself will do
        std::vector<std::unique_ptr<HostTurn>> turns;
        std::multimap<CUgraphNode, HostTurn*> by_node;  // of the graph
        std::vector<void*> pinned;
    };
    CUresult expand(CUgraph graph, Expansion& out) const;
    // `original`: the graph that `clone` was cloned from, or null within a child graph.
    CUresult expand_nodes(CUgraph clone, CUgraph original, Expansion& out) const;
    CUresult replace_function(CUgraph clone, CUgraphNode node, CUgraphNode named, Expansion& out) const;
    CUresult route_copy(CUgraph clone, CUgraphNode node, CUgraphNode named, Expansion& out) const;
    CUresult add_turn(HostTurn::Kind kind, CUgraphNode named, Expansion& out, HostTurn*& turn) const;
    CUresult stage(CUDA_MEMCPY3D& copy, HostTurn& turn, Expansion& out) const;
    CUgraphNode original_of(CUgraph graph, const Expansion& of, CUgraphNode node) const;
    void release(Expansion& expansion) const;

    const driver::Api& api_;
    CUgraphExec executable_ = nullptr;
    std::uint32_t cost_ = 1;
    Expansion now_;
    std::vector<Expansion> before_;  // what launches from before an update still use
};

}  // namespace gpupool::worker
