// An executable graph, and what of it happens in the client.
//
// The driver's graph describes: host functions and host memory stand in it by their names. To run, it is cloned, and in
// the clone every host function becomes a pair of memory operations (write that its step has come; wait until it is
// done), and every copy to or from the client's memory goes through pinned memory here, with such a pair before or
// behind it. A graph that has neither is instantiated as it is, and costs nothing.
//
// One launch of an executable begins when the one before has ended (the driver sees to it), so each place has one step
// at a time. A launch does what the executable was when it was launched: changes are for later ones.
//
// Ownership: an executable and its launches share its steps, and these their pinned memory. Threads: the dispatcher's.
// A helper instantiates it, before anybody else knows it, and changes it where that may wait for the GPU, while the
// dispatcher issues nothing (WaitingCalls::run_alone); one that launches it asks for driver() alone. Errors: the
// driver's.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "protocol/calls/graph_node.h"
#include "protocol/codec/record.h"
#include "server/driver/api.h"
#include "server/worker/dispatch/command.h"
#include "server/worker/graphs/graph_shape.h"
#include "server/worker/memory/pinned_memory.h"

namespace gpupool::worker {

class Operation;

// What is done in a step.
struct StepWork {
    std::uint64_t function = 0;      // as the client named it
    codec::GraphCopyNotice rows{};   // of the client's memory; `transfer` is set with each step
    PinnedMemory::BlockPtr staging;  // packed rows
    std::uint64_t bytes = 0;
};

// A node whose step the client takes.
struct ClientStep {
    enum class Kind { function, from_client, to_client };
    Kind kind = Kind::function;
    bool enabled = true;                   // or its launches only pass it
    std::shared_ptr<const StepWork> work;  // of launches to come
    PinnedMemory::BlockPtr words;
    std::uint32_t* request = nullptr;  // the GPU writes 1 when the step has come
    std::uint32_t* done = nullptr;     // the GPU waits for 1, and clears it
    CUdeviceptr device_request = 0, device_done = 0;

    // Turns to come, and the one under way; see graph_steps.h.
    std::deque<std::shared_ptr<const StepWork>> launched;
    std::shared_ptr<const StepWork> current;
    bool busy = false;
    bool confirming = false;  // all is sent, and the client asked to say that it is there
    std::uint64_t ticket = 0;
    std::uint64_t offset = 0;                       // of what was expected or sent
    std::shared_ptr<std::atomic<unsigned>> flying;  // pieces that are on their way
};

// What of one graph happens in the client.
struct ClientSteps {
    std::vector<std::unique_ptr<ClientStep>> list;
    std::multimap<CUgraphNode, ClientStep*> by_node;  // of the graph that the client knows
    unsigned running = 0;                             // launches that are not known to have ended
};

class GraphExec {
  public:
    GraphExec(const driver::Api& api, PinnedMemory& pinned) : api_(api), pinned_(pinned) {}
    ~GraphExec();
    GraphExec(const GraphExec&) = delete;
    GraphExec& operator=(const GraphExec&) = delete;

    // With a current context. `bodies`: the graphs of its conditional nodes. `error_node` is one of `graph`'s.
    CUresult instantiate(CUgraph graph, std::span<const CUgraph> bodies, std::uint64_t flags, CUgraphNode& error_node,
                         int& outcome);
    // What the information says of nodes is of `graph`.
    CUresult update(CUgraph graph, std::span<const CUgraph> bodies, CUgraphExecUpdateResultInfo& information);
    // New parameters for what stands for `node` of the graph that this was made from.
    CUresult set(CUgraphNode node, CUgraphNodeParams& parameters);
    CUresult enable(CUgraphNode node, unsigned enabled);
    // The node that stands for it in the driver's executable.
    CUresult own_node(CUgraphNode node, CUgraphNode& own) const;

    [[nodiscard]] CUgraphExec driver() const { return executable_; }
    // Places that a launch takes in the driver's queue.
    [[nodiscard]] std::uint32_t cost() const { return cost_; }
    // A change that waits until launches which were asked for before it are issued, and is for those behind it.
    struct WaitingChange {
        std::size_t waits_for = 0;  // launches, and the change before it
        CUgraphNode node = nullptr;
        Command command;  // taken then
        std::shared_ptr<WaitingChange> next;

        WaitingChange() = default;
        WaitingChange(const WaitingChange&) = delete;
        WaitingChange& operator=(const WaitingChange&) = delete;
        ~WaitingChange() {  // not one within the other
            for (auto rest = std::move(next); rest != nullptr && rest.use_count() == 1;) {
                rest = std::move(rest->next);
            }
        }
    };
    // Of the changes behind which no launch has come those that nobody waits for, by node and opcode: a later one of
    // the same takes its place.
    std::map<std::pair<CUgraphNode, std::uint16_t>, std::shared_ptr<WaitingChange>> replaceable;
    bool client_held = false;  // it was told to change this no more for now
    // Of the first change that nobody waited for and was refused: until an update it is not what the program made of
    // it.
    CUresult refused = CUDA_SUCCESS;
    std::shared_ptr<WaitingChange> last_change;  // asked for, made or not
    // Launches that wait in their streams, of those that came behind it.
    std::vector<const Operation*> held_launches;
    bool in_driver = false;  // a helper thread launches or uploads it
    // Ever asked for, of those that had to wait, and of these made.
    std::uint64_t changes_asked = 0, changes_made = 0;
    [[nodiscard]] bool has_changes_waiting() const { return changes_made != changes_asked; }
    GraphMemoryUse memory;
    // Of launches from now on.
    [[nodiscard]] const std::shared_ptr<ClientSteps>& steps() const { return steps_; }

  private:
    // `clone` stays null where the graph itself will do.
    CUresult expand(CUgraph graph, std::span<const CUgraph> bodies, CUgraph& clone, ClientSteps& out,
                    GraphShape& shape) const;
    // `original`: the graph that `clone` was cloned from, or null within a child graph.
    CUresult expand_nodes(CUgraph clone, CUgraph original, ClientSteps& out) const;
    CUresult replace_function(CUgraph clone, CUgraphNode node, CUgraphNode named, ClientSteps& out) const;
    CUresult route_copy(CUgraph clone, CUgraphNode node, CUgraphNode named, ClientSteps& out) const;
    CUresult add_step(ClientStep::Kind kind, CUgraphNode named, ClientSteps& out, ClientStep*& step) const;
    CUresult stage(CUDA_MEMCPY3D& copy, const ClientStep& step, std::shared_ptr<const StepWork>& work) const;
    CUresult set_copy(CUgraphNode node, CUgraphNodeParams& parameters);
    CUresult set_driver(CUgraphNode node, CUgraphNodeParams& parameters) const;
    CUgraphNode original_of(CUgraph graph, CUgraph clone, CUgraphNode node) const;

    const driver::Api& api_;
    PinnedMemory& pinned_;
    CUgraphExec executable_ = nullptr;
    CUgraph clone_ = nullptr;  // that it was instantiated from: updates change what the nodes do, not which they are
    std::uint32_t cost_ = 1;
    std::shared_ptr<ClientSteps> steps_ = std::make_shared<ClientSteps>();
};

}  // namespace gpupool::worker
