// An executable graph, and the parts of it that happen in the client.
//
// The program's graph in the driver is only a description: host functions and host memory stand in it under their
// names. The driver instantiates a form of it that has memory operations for each host function: write that its client
// step has begun, wait until it is done. Each copy to or from the client's memory goes through pinned memory of the
// worker, with such a step behind or before it. graph_expansion.h puts them there. A graph without such nodes is
// instantiated as it is, at no cost.
//
// The driver begins a launch of an executable when its previous launch has ended, so each client step is taken by one
// launch at a time. A launch runs the executable as it was when it was launched: changes apply to later launches.
//
// Ownership: an executable and its launches share its client steps, which share their pinned memory.
// Threads: the dispatcher's, with these exceptions. A helper instantiates the executable before it is known to any
//   other code, and changes it if that may wait for the GPU, while the dispatcher issues nothing
//   (WaitingCalls::run_alone). A helper that launches it calls only driver().
// Errors: the driver's.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "protocol/calls/graph_node.h"
#include "server/driver/api.h"
#include "server/worker/gate/queue.h"
#include "server/worker/graphs/graph_expansion.h"
#include "server/worker/graphs/graph_shape.h"
#include "server/worker/memory/pinned_memory.h"

namespace gpupool::worker {

struct StreamState;

class GraphExec {
  public:
    GraphExec(const driver::Api& api, PinnedMemory& pinned) : api_(api), pinned_(pinned) {}
    ~GraphExec();
    GraphExec(const GraphExec&) = delete;
    GraphExec& operator=(const GraphExec&) = delete;

    // Needs a current context. `error_node` is one of `graph`'s.
    CUresult instantiate(CUgraph graph, ExpansionParts& parts, std::uint64_t flags, CUgraphNode& error_node,
                         int& outcome);
    // Nodes in `information` are nodes of `graph`.
    CUresult update(CUgraph graph, ExpansionParts& parts, CUgraphExecUpdateResultInfo& information);
    // Sets the parameters of the executable's counterpart of `node`, a node of the graph that it was made from.
    CUresult set(CUgraphNode node, CUgraphNodeParams& parameters);
    CUresult enable(CUgraphNode node, unsigned enabled);
    // The node by which the driver's executable knows `node`: its copy if the executable was made from a clone.
    CUresult own_node(CUgraphNode node, CUgraphNode& own) const;

    [[nodiscard]] CUgraphExec driver() const { return executable_; }
    // Places that a launch takes in the driver's queue.
    [[nodiscard]] std::uint32_t cost() const { return cost_; }
    // Launches and changes that wait at the gate, in order: a change applies to later launches only.
    Queue queue = {.limits = Queue::kOfGraph};
    std::size_t changes_queued = 0, launches_queued = 0;
    const StreamState* queued_in = nullptr;  // of the launch queued last; only compared
    // The error of the first refused change whose caller did not wait. Until an update the executable is not what the
    // program made of it.
    CUresult refused = CUDA_SUCCESS;
    // The client wants to know when the executable is destroyed and its launches are complete.
    struct Watch {
        bool counts = false;
        bool destroyed = false;
        std::uint64_t ticket = 0;
        std::size_t running = 0;
    };
    Watch watch;
    GraphMemoryUse memory;
    GraphMemory::Charge reserved;  // for the next launch
    // For future launches.
    [[nodiscard]] const std::shared_ptr<ClientSteps>& steps() const { return steps_; }

  private:
    CUresult shape_with_bodies(CUgraph graph, const ExpansionParts& parts, GraphShape& shape) const;
    // `clone` stays null if the graph itself can be instantiated.
    CUresult expand(CUgraph graph, ExpansionParts& parts, Expansion& expansion, CUgraph& clone,
                    const ClientSteps& steps, GraphShape& shape) const;
    CUresult set_copy(CUgraphNode node, CUgraphNodeParams& parameters);
    CUresult set_driver(CUgraphNode node, CUgraphNodeParams& parameters) const;
    CUgraphNode original_of(CUgraph graph, CUgraph clone, CUgraphNode node) const;

    const driver::Api& api_;
    PinnedMemory& pinned_;
    CUgraphExec executable_ = nullptr;
    CUgraph clone_ = nullptr;  // what was instantiated; null if the graph itself was
    std::uint32_t cost_ = 1;
    std::shared_ptr<ClientSteps> steps_ = std::make_shared<ClientSteps>();
};

}  // namespace gpupool::worker
