// Graphs: nodes by their parameters, instantiation (on a helper thread, since the driver compiles), launches.

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <optional>
#include <utility>

#include "server/worker/graph_params.h"
#include "server/worker/graph_shape.h"
#include "server/worker/serve.h"

namespace gpupool::worker::handlers {
namespace {

constexpr std::size_t kMaxExecutables = 64u << 10;
constexpr std::uint64_t kMaxAddedNodes = 2u << 20;  // of all graphs, those within others included

template <class Handle>
CUresult translate(const Worker& worker, Handle& handle) {
    const HandleTable::Lookup found = worker.handles.find(handle);
    handle = codec::from_wire<Handle>(found.driver);
    return found.found == HandleTable::Found::yes && found.driver != 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

std::shared_ptr<GraphExec> executable(const Worker& worker, CUgraphExec client) {
    const auto it = worker.graphs.executables.find(client);
    return it == worker.graphs.executables.end() ? nullptr : it->second;
}

// A graph and all within it.
struct Contents {
    std::vector<CUgraphNode> nodes;
    std::vector<CUgraph> graphs;

    void add(const driver::Api& api, CUgraph graph, unsigned level = 1) {
        graphs.push_back(graph);
        std::vector<CUgraphNode> own;
        nodes_of(api, graph, own);
        nodes.insert(nodes.end(), own.begin(), own.end());
        for (const CUgraphNode node : own) {
            add_child(api, node, level);
        }
    }
    // Of a node at `level`.
    void add_child(const driver::Api& api, CUgraphNode node, unsigned level) {
        CUgraph child = nullptr;
        if (level < kMaxGraphDepth && child_of(api, node, child) == CUDA_SUCCESS && child != nullptr) {
            add(api, child, level + 1);
        }
    }
    // They have ended: the driver may give their handles to others.
    void forget(Worker& worker) const {
        for (const CUgraphNode node : nodes) {
            worker.graphs.unchanged.erase(node);
            worker.handles.forget_driver(node);
        }
        for (const CUgraph graph : graphs) {
            if (const auto added = worker.graphs.added_nodes.find(graph); added != worker.graphs.added_nodes.end()) {
                worker.graphs.all_added_nodes -= added->second;
                worker.graphs.added_nodes.erase(added);
            }
            worker.graphs.levels.erase(graph);
            worker.graphs.failed.erase(graph);
            worker.graphs.full.erase(graph);
            worker.handles.forget_driver(graph);
        }
    }
};

unsigned level_of(const Worker& worker, CUgraph graph) {
    const auto it = worker.graphs.levels.find(graph);
    return it == worker.graphs.levels.end() ? 1 : it->second;
}

// The driver has made `node` of a graph at `level`: graphs within it may be added to as well.
void note_levels(Worker& worker, CUgraphNode node, unsigned level) {
    CUgraph child = nullptr;
    std::vector<CUgraphNode> nodes;
    if (child_of(worker.api, node, child) != CUDA_SUCCESS || child == nullptr ||
        nodes_of(worker.api, child, nodes) != CUDA_SUCCESS) {
        return;
    }
    worker.graphs.levels[child] = level + 1;
    for (const CUgraphNode inner : nodes) {
        note_levels(worker, inner, level + 1);
    }
}

// How many nodes the driver will make of what is to be added; refused when that is too much.
CUresult nodes_to_add(Worker& worker, CUgraph graph, const CUgraphNodeParams& added, std::uint64_t& nodes) {
    nodes = 1;
    if (added.type == CU_GRAPH_NODE_TYPE_GRAPH) {
        GraphShape child;
        if (const CUresult result = shape_of(worker.api, added.graph.graph, kMaxGraphNodes, child);
            result != CUDA_SUCCESS) {
            return result;
        }
        if (level_of(worker, graph) + child.depth > kMaxGraphDepth) {
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        nodes += child.nodes;
    }
    std::uint64_t& in_graph = worker.graphs.added_nodes[graph];
    const auto fits = [&] {
        return in_graph + nodes <= kMaxGraphNodes && worker.graphs.all_added_nodes + nodes <= kMaxAddedNodes;
    };
    GraphShape now;
    if (!fits() && !worker.graphs.full.contains(graph) &&
        shape_of(worker.api, graph, kMaxGraphNodesAtAll, now) == CUDA_SUCCESS && now.nodes < in_graph) {
        worker.graphs.all_added_nodes -= in_graph - now.nodes;  // some were destroyed since
        in_graph = now.nodes;
    }
    if (fits()) {
        return CUDA_SUCCESS;
    }
    worker.graphs.full.insert(graph);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

// Why the graph is not what the program made, if it is not.
CUresult failure_of(const Worker& worker, CUgraph graph) {
    const GraphBook& book = worker.graphs;
    if (const auto failed = book.failed.find(graph); failed != book.failed.end()) {
        return failed->second;
    }
    if (book.unchanged.empty()) {
        return CUDA_SUCCESS;
    }
    Contents contents;
    contents.add(worker.api, graph);
    for (const CUgraphNode node : contents.nodes) {
        if (const auto failed = book.unchanged.find(node); failed != book.unchanged.end()) {
            return failed->second;
        }
    }
    return CUDA_SUCCESS;
}

// The verdict on a change that nobody may be waiting for: of a graph's node, or of an executable.
CUresult note_change(Worker& worker, const Command& command, CUgraphNode node, CUresult result) {
    if (result == CUDA_SUCCESS) {
        worker.graphs.unchanged.erase(node);
    } else if (!command.reply_wanted()) {
        worker.graphs.unchanged.try_emplace(node, result);
    }
    return result;
}
CUresult note_change(const Command& command, GraphExec& graph, CUresult result) {
    if (result != CUDA_SUCCESS && !command.reply_wanted() && graph.refused == CUDA_SUCCESS) {
        graph.refused = result;
    }
    return result;
}

// One launch of a graph, in its stream's turn. Its nodes' turns may come before the driver's call is over.
class Launch {
  public:
    Launch(Worker& worker, StreamState& stream, std::shared_ptr<GraphExec> graph)
        : worker_(worker),
          stream_(stream),
          graph_(std::move(graph)),
          work_(worker.tracer, stream, codec::TraceKind::graph) {
        if (!graph_->turns()->list.empty()) {
            worker_.graph_turns.begin(graph_->turns());
        }
    }
    void end(CUresult result) {
        work_.end(result);
        worker_.scheduler.issued(stream_, graph_->cost());
        if (graph_->turns()->list.empty()) {
            return;
        }
        if (result != CUDA_SUCCESS) {
            worker_.graph_turns.cancel(graph_->turns());
            return;
        }
        worker_.scheduler.mark(
            stream_, [&worker = worker_, turns = graph_->turns()](CUresult) { worker.graph_turns.end(turns); });
    }

  private:
    Worker& worker_;
    StreamState& stream_;
    const std::shared_ptr<GraphExec> graph_;
    Tracer::Work work_;
};

// The driver takes 2,000 nodes behind work that does not end, and waits with 5,000 (docs/driver-facts.md).
constexpr std::uint32_t kMostNodesAtOnce = 2000;

// Will the driver take it without waiting for the GPU?
bool fits_queue(const GraphExec& graph) {
    return graph.cost() <= kMostNodesAtOnce;
}

// A call that waits for the GPU may get in while the driver takes a graph with turns: it would wait for them, and keep
// the dispatcher in there (seen, docs/driver-facts.md).
bool may_begin(const Worker& worker, const GraphExec& graph) {
    return graph.turns()->list.empty() || !worker.waiting_calls.any();
}

CUresult check_launch(Worker& worker, const Command& command, const StreamState& stream, const GraphExec& graph) {
    if (stream.capturing) {
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;  // the captured graph would use this one's memory
    }
    if (graph.refused != CUDA_SUCCESS) {
        return graph.refused;
    }
    return worker.scheduler.enter(worker.context_of(command));
}

CUresult launch(Worker& worker, const Command& command, StreamState& stream, const std::shared_ptr<GraphExec>& graph) {
    CUresult result = check_launch(worker, command, stream, *graph);
    if (result == CUDA_SUCCESS) {
        Launch launch(worker, stream, graph);
        result = driver::call(worker.api.cuGraphLaunch, graph->driver(), stream.driver);
        launch.end(result);
    }
    return result;
}

// A launch that waits in its stream, and one that may take until the GPU goes on. It keeps its graph, which may be
// destroyed before its turn comes.
class HeldLaunch final : public HeldForCommand {
  public:
    HeldLaunch(Worker& worker, Command command, StreamState& stream, std::shared_ptr<GraphExec> graph)
        : HeldForCommand(worker, std::move(command)), stream_(stream), graph_(std::move(graph)) {
        command_.keep_header(kHeldCostBytes);
        cost = graph_->cost();
        graph_->held_launches.push_back(this);
    }
    ~HeldLaunch() override { std::erase(graph_->held_launches, this); }
    bool advance() override {
        if (graph_->changes_made < changes_before_ || (!launch_ && !may_begin(worker_, *graph_))) {
            return false;
        }
        if (fits_queue(*graph_)) {
            const Tracer::Issue issue(worker_.tracer, command_.header, true);
            worker_.answer(command_, launch(worker_, command_, stream_, graph_));
            return true;
        }
        if (!launch_) {
            const Tracer::Issue issue(worker_.tracer, command_.header, true);
            if (const CUresult result = check_launch(worker_, command_, stream_, *graph_); result != CUDA_SUCCESS) {
                worker_.answer(command_, result);
                return true;
            }
            begin_elsewhere();
        }
        if (!call_->result) {
            return false;
        }
        launch_->end(*call_->result);
        worker_.answer(command_, *call_->result);
        return true;
    }

  private:
    void begin_elsewhere() {
        launch_.emplace(worker_, stream_, graph_);
        call_ = WaitingCall::run(worker_.waiting_calls, worker_.api, stream_.context->driver,
                                 [&api = worker_.api, graph = graph_, stream = stream_.driver] {
                                     return driver::call(api.cuGraphLaunch, graph->driver(), stream);
                                 });
    }

    StreamState& stream_;
    const std::shared_ptr<GraphExec> graph_;
    const std::uint64_t changes_before_ = graph_->changes_asked;
    std::optional<Launch> launch_;  // of a large graph, once it has begun
    std::shared_ptr<WaitingCall> call_;
};

// The driver waits for the GPU where a changed graph needs more local memory than any before, and the GPU may have to
// wait for us.
void change_elsewhere(Worker& worker, const Command& command, std::function<CUresult()> change,
                      std::function<void(CUresult)> done) {
    const ContextState* const context = worker.context_of(command);
    const auto result = std::make_shared<CUresult>(CUDA_SUCCESS);
    worker.waiting_calls.run_alone([&api = worker.api, context = context == nullptr ? nullptr : context->driver,
                                    change = std::move(change), result] { *result = in_context(api, context, change); },
                                   [result, done = std::move(done)] { done(*result); });
}

// The command as it is taken later.
Command kept(const Command& command) {
    Command later = command;
    later.keep_body(command.reply_wanted() ? kWaitingCostBytes : kHeldCostBytes);
    later.its_turn = true;
    return later;
}

// Of one executable. Natively who launches it waits by then, since the driver's queue is full of its nodes.
constexpr std::uint64_t kMostChangesWaiting = 4096, kGoOnWithChanges = 1024;

void tell_client(Worker& worker, GraphExec& graph, std::uint64_t client, bool held) {
    graph.client_held = held;
    worker.notify(codec::NoticeType::hold,
                  codec::StreamHoldNotice{codec::kHoldsGraphChanges, client, 0, held ? 1u : 0u});
}

using WaitingChangePtr = std::shared_ptr<GraphExec::WaitingChange>;

// Makes a change that has nothing left to wait for, and those behind it that waited for it alone, when the driver may
// be entered.
void make_changes(Worker& worker, const std::shared_ptr<GraphExec>& graph, std::uint64_t client,
                  WaitingChangePtr change) {
    while (change != nullptr) {
        if (worker.stays_out()) {
            worker.in_driver([&worker, graph, client, change] { make_changes(worker, graph, client, change); });
            return;
        }
        ++graph->changes_made;
        const auto place = graph->replaceable.find({change->node, change->command.header.opcode});
        if (place != graph->replaceable.end() && place->second == change) {
            graph->replaceable.erase(place);
        }
        auto& waiting = worker.graphs.changes_waiting;
        waiting.erase(waiting.find(change->node));
        if (graph->client_held && graph->changes_asked - graph->changes_made <= kGoOnWithChanges) {
            tell_client(worker, *graph, client, false);
        }
        Command command = std::move(change->command);
        worker.dispatch(command);
        change = std::move(change->next);
        if (change != nullptr && --change->waits_for != 0) {
            return;
        }
    }
}

// A change of an executable graph is one for the launches behind it: empty when it may be made now. `client` is what
// the client calls it, `node` the driver's; null for a change of all.
std::optional<Outcome> await_launches(Worker& worker, const Command& command, CUgraphExec client,
                                      const std::shared_ptr<GraphExec>& graph, CUgraphNode node) {
    if (command.its_turn || (graph->held_launches.empty() && !graph->has_changes_waiting())) {
        return std::nullopt;
    }
    if (!graph->held_launches.empty() || node == nullptr) {
        graph->replaceable.clear();
    }
    WaitingChangePtr* const place =
        node == nullptr || command.reply_wanted() ? nullptr : &graph->replaceable[{node, command.header.opcode}];
    if (place != nullptr && *place != nullptr) {
        (*place)->command = kept(command);
        return Outcome::answered();
    }
    const WaitingChangePtr change = std::make_shared<GraphExec::WaitingChange>();
    change->node = node;
    change->command = kept(command);
    const std::vector<const Operation*> launches = std::exchange(graph->held_launches, {});
    change->waits_for = launches.size();
    if (graph->has_changes_waiting()) {
        graph->last_change->next = change;
        ++change->waits_for;
    }
    graph->last_change = change;
    ++graph->changes_asked;
    worker.graphs.changes_waiting.insert(node);
    if (place != nullptr) {
        *place = change;
    }
    const std::uint64_t name = codec::to_wire(client);
    if (!graph->client_held && graph->changes_asked - graph->changes_made >= kMostChangesWaiting) {
        tell_client(worker, *graph, name, true);
    }
    for (const Operation* const launch : launches) {
        worker.scheduler.when_issued(launch->id, [&worker, graph, name, change] {
            if (--change->waits_for == 0) {
                make_changes(worker, graph, name, change);
            }
        });
    }
    return Outcome::answered();
}

// Does a change that waits name a node of these?
bool is_named(const Worker& worker, const Contents& contents) {
    const auto& waiting = worker.graphs.changes_waiting;
    return !waiting.empty() && std::any_of(contents.nodes.begin(), contents.nodes.end(),
                                           [&](CUgraphNode node) { return waiting.contains(node); });
}

// What ends something that a waiting change names, or asks what it is, comes behind the change: empty when none waits.
std::optional<Outcome> await_changes(Worker& worker, const Command& command, bool any) {
    if (command.its_turn || !any) {
        return std::nullopt;
    }
    worker.scheduler.when_issued([&worker, later = kept(command)]() mutable { worker.dispatch(later); });
    return Outcome::answered();
}

// `added_to`: the driver's graph, where there is such a one.
template <class Call>
CUresult add_node(Worker& worker, Command& command, codec::Slots<Call>& slots, NodeParameters& parameters,
                  CUgraph& added_to) {
    const GraphNode& node = slots.template at<Call::node>().object;
    CUgraph& graph = slots.template at<Call::graph>().value;
    const std::size_t count = slots.template at<Call::dependency_count>().value;
    const std::size_t edge_count = slots.template at<Call::edge_count>().value;
    if (slots.template at<Call::node>().value == nullptr || (edge_count != 0 && edge_count != count)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    detail::Translator translator{worker, command};
    translator.handle(graph);
    added_to = translator.result == CUDA_SUCCESS ? graph : nullptr;
    for (CUgraphNode& dependency : slots.template at<Call::dependencies>().object) {
        translator.handle(dependency);
    }
    if (translator.result != CUDA_SUCCESS || graph == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = parameters.read(worker.handles, worker.objects, node, slots.template at<Call::payload>().object);
    if (result == CUDA_SUCCESS) {
        result = worker.scheduler.enter(worker.context_of(command));
    }
    std::uint64_t nodes = 0;
    if (result == CUDA_SUCCESS && node.type == CU_GRAPH_NODE_TYPE_GRAPH) {
        result = failure_of(worker, parameters.driver.graph.graph);
    }
    if (result == CUDA_SUCCESS) {
        result = nodes_to_add(worker, graph, parameters.driver, nodes);
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    CUgraphNode& created = slots.template at<Call::created>().object;
    const CUgraphEdgeData* const edges = edge_count == 0 ? nullptr : slots.template at<Call::edges>().value;
    result = driver::call(worker.api.cuGraphAddNode_v2, &created, graph, slots.template at<Call::dependencies>().value,
                          edges, count, &parameters.driver);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    worker.graphs.added_nodes[graph] += nodes;
    worker.graphs.all_added_nodes += nodes;
    if (node.type == CU_GRAPH_NODE_TYPE_GRAPH) {
        note_levels(worker, created, level_of(worker, graph));
    }
    return CUDA_SUCCESS;
}

bool is_owning(const GraphNode& node) {
    return node.type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || node.type == CU_GRAPH_NODE_TYPE_CONDITIONAL;
}

}  // namespace

Outcome gpGraphAddNode(Worker& worker, Command& command, codec::Slots<calls::gpGraphAddNode>& slots) {
    NodeParameters parameters;
    CUgraph graph = nullptr;
    const CUresult result = is_owning(slots.at<calls::gpGraphAddNode::node>().object)
                                ? CUDA_ERROR_INVALID_VALUE
                                : add_node(worker, command, slots, parameters, graph);
    if (result != CUDA_SUCCESS && graph != nullptr && !command.reply_wanted()) {
        worker.graphs.failed.try_emplace(graph, result);
    }
    return result;
}

Outcome gpGraphAddOwningNode(Worker& worker, Command& command, codec::Slots<calls::gpGraphAddOwningNode>& slots) {
    using Call = calls::gpGraphAddOwningNode;
    const GraphNode& node = slots.at<Call::node>().object;
    auto& graphs = slots.at<Call::graphs>().object;
    const std::size_t graph_count = slots.at<Call::graph_count>().value;
    const bool conditional = node.type == CU_GRAPH_NODE_TYPE_CONDITIONAL;
    if (!is_owning(node) || (conditional && graph_count != node.count)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    NodeParameters parameters;
    CUgraph graph = nullptr;
    const CUresult result = add_node(worker, command, slots, parameters, graph);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    slots.at<Call::address>().object = conditional ? CUdeviceptr{0} : parameters.driver.alloc.dptr;
    if (conditional && parameters.driver.conditional.phGraph_out != nullptr) {
        std::copy_n(parameters.driver.conditional.phGraph_out, std::min(graph_count, graphs.size()), graphs.begin());
    }
    return CUDA_SUCCESS;
}

Outcome gpGraphNodeSetParams(Worker& worker, Command& command, codec::Slots<calls::gpGraphNodeSetParams>& slots) {
    using Call = calls::gpGraphNodeSetParams;
    CUgraphNode changed = slots.at<Call::changed>().value;
    if (slots.at<Call::node>().value == nullptr || translate(worker, changed) != CUDA_SUCCESS) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const bool of_executable = slots.at<Call::executable>().value != nullptr;
    const auto graph = of_executable ? executable(worker, slots.at<Call::executable>().value) : nullptr;
    if (of_executable && graph == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (auto waiting = of_executable
                           ? await_launches(worker, command, slots.at<Call::executable>().value, graph, changed)
                           : std::nullopt) {
        return std::move(*waiting);
    }
    const auto note = [&worker, changed, graph](const Command& made, CUresult result) {
        return graph == nullptr ? note_change(worker, made, changed, result) : note_change(made, *graph, result);
    };
    struct Change {
        std::vector<unsigned char> payload;
        NodeParameters parameters;
    };
    const auto change = std::make_shared<Change>();
    const std::span<const unsigned char> payload = slots.at<Call::payload>().object;
    change->payload.assign(payload.begin(), payload.end());
    CUgraphNodeParams& parameters = change->parameters.driver;
    CUresult result =
        change->parameters.read(worker.handles, worker.objects, slots.at<Call::node>().object, change->payload);
    if (result == CUDA_SUCCESS) {
        result = worker.scheduler.enter(worker.context_of(command));
    }
    if (result != CUDA_SUCCESS) {
        return note(command, result);
    }
    if (!of_executable) {
        return note(command, driver::call(worker.api.cuGraphNodeSetParams, changed, &parameters));
    }
    const bool has_kernels =
        parameters.type == CU_GRAPH_NODE_TYPE_KERNEL || parameters.type == CU_GRAPH_NODE_TYPE_GRAPH;
    if (!has_kernels || !worker.gpu_may_wait_for_us()) {
        return note(command, graph->set(changed, parameters));
    }
    change_elsewhere(
        worker, command, [graph, changed, change] { return graph->set(changed, change->parameters.driver); },
        [&worker, command, note](CUresult set) { worker.answer(command, note(command, set)); });
    return Outcome::answered();
}

Outcome gpGraphNodeGetParams(Worker& worker, Command& command, codec::Slots<calls::gpGraphNodeGetParams>& slots) {
    using Call = calls::gpGraphNodeGetParams;
    CUgraphNode asked = slots.at<Call::asked>().value;
    if (translate(worker, asked) != CUDA_SUCCESS) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    worker.scheduler.enter(worker.context_of(command));
    return describe(worker.api, worker.handles, asked, slots.at<Call::node>().object, slots.at<Call::payload>().object,
                    slots.at<Call::payload_bytes>().object);
}

Outcome gpGraphInstantiate(Worker& worker, Command& command, codec::Slots<calls::gpGraphInstantiate>& slots) {
    using Call = calls::gpGraphInstantiate;
    CUgraph graph = slots.at<Call::graph>().value;
    if (translate(worker, graph) != CUDA_SUCCESS) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const ContextState* const context = worker.context_of(command);
    if (context == nullptr) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (worker.graphs.executables.size() >= kMaxExecutables) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (const CUresult failed = failure_of(worker, graph); failed != CUDA_SUCCESS) {
        return failed;
    }
    struct Work {
        std::shared_ptr<GraphExec> made;
        CUgraphNode error_node = nullptr;
        int outcome = 0;
        CUresult result = CUDA_SUCCESS;
    };
    const auto work = std::make_shared<Work>();
    work->made = std::make_shared<GraphExec>(worker.api, worker.pinned);
    const driver::Api& api = worker.api;
    worker.waiting_calls.run(
        [&api, work, graph, context = context->driver, flags = slots.at<Call::flags>().value] {
            work->result = in_context(
                api, context, [&] { return work->made->instantiate(graph, flags, work->error_node, work->outcome); });
        },
        [&worker, command, work, client = codec::from_wire<CUgraphExec>(slots.at<Call::executable>().minted)] {
            if (work->result == CUDA_SUCCESS && worker.graphs.executables.contains(client)) {
                work->result = CUDA_ERROR_INVALID_VALUE;  // the name was given to another meanwhile
            }
            if (work->result == CUDA_SUCCESS) {
                worker.graphs.executables[client] = work->made;
                worker.handles.bind(client, work->made->driver());
            }
            worker.answer(command, work->result, false, 16, [&](std::byte* place) {
                codec::Writer out(place);
                out.value(worker.handles.client_handle(work->error_node));
                out.value(work->outcome);
            });
        });
    return Outcome::answered();
}

Outcome cuGraphExecDestroy(Worker& worker, Command& command, codec::Slots<calls::cuGraphExecDestroy>& slots) {
    const auto it = worker.graphs.executables.find(slots.at<calls::cuGraphExecDestroy::hGraphExec>().value);
    if (it == worker.graphs.executables.end()) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (auto waiting = await_changes(worker, command, it->second->has_changes_waiting())) {
        return std::move(*waiting);
    }
    // Held launches, and those that run, keep it.
    const std::shared_ptr<GraphExec> graph = it->second;
    worker.graphs.executables.erase(it);
    return CUDA_SUCCESS;
}

Outcome cuGraphDestroy(Worker& worker, Command& command, codec::Slots<calls::cuGraphDestroy>& slots) {
    CUgraph graph = slots.at<calls::cuGraphDestroy::hGraph>().value;
    if (translate(worker, graph) != CUDA_SUCCESS) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    worker.scheduler.enter(worker.context_of(command));
    Contents contents;
    contents.add(worker.api, graph);
    if (auto waiting = await_changes(worker, command, is_named(worker, contents))) {
        return std::move(*waiting);
    }
    const CUresult result = driver::call(worker.api.cuGraphDestroy, graph);
    if (result == CUDA_SUCCESS) {
        contents.forget(worker);
    }
    return result;
}

Outcome cuGraphDestroyNode(Worker& worker, Command& command, codec::Slots<calls::cuGraphDestroyNode>& slots) {
    CUgraphNode node = slots.at<calls::cuGraphDestroyNode::hNode>().value;
    if (translate(worker, node) != CUDA_SUCCESS) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    worker.scheduler.enter(worker.context_of(command));
    Contents within;
    within.add_child(worker.api, node, 1);
    const bool named = worker.graphs.changes_waiting.contains(node) || is_named(worker, within);
    if (auto waiting = await_changes(worker, command, named)) {
        return std::move(*waiting);
    }
    const CUresult result = driver::call(worker.api.cuGraphDestroyNode, node);
    if (result == CUDA_SUCCESS) {
        within.forget(worker);
        worker.graphs.full.clear();
        worker.graphs.unchanged.erase(node);
    }
    return result;
}

// A copy counts as if its nodes had been added.
Outcome cuGraphClone(Worker& worker, Command& command, codec::Slots<calls::cuGraphClone>& slots) {
    using Call = calls::cuGraphClone;
    CUgraph original = slots.at<Call::originalGraph>().value;
    if (translate(worker, original) != CUDA_SUCCESS || slots.at<Call::phGraphClone>().value == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    worker.scheduler.enter(worker.context_of(command));
    GraphShape shape;
    CUresult result = failure_of(worker, original);
    if (result == CUDA_SUCCESS) {
        result = shape_of(worker.api, original, kMaxGraphNodesAtAll, shape);
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (worker.graphs.all_added_nodes + shape.nodes > kMaxAddedNodes) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUgraph& clone = slots.at<Call::phGraphClone>().object;
    result = driver::call(worker.api.cuGraphClone, &clone, original);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    worker.graphs.added_nodes[clone] = shape.nodes;
    worker.graphs.all_added_nodes += shape.nodes;
    std::vector<CUgraphNode> nodes;
    nodes_of(worker.api, clone, nodes);
    for (const CUgraphNode node : nodes) {
        note_levels(worker, node, 1);
    }
    return CUDA_SUCCESS;
}

Outcome cuGraphLaunch(Worker& worker, Command& command, codec::Slots<calls::cuGraphLaunch>& slots) {
    using Call = calls::cuGraphLaunch;
    CUresult result = CUDA_SUCCESS;
    StreamState* stream = worker.stream_of(command, slots.at<Call::hStream>().value, result);
    if (stream == nullptr) {
        return result;
    }
    const auto graph = executable(worker, slots.at<Call::hGraphExec>().value);
    if (graph == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!fits_queue(*graph) || !may_begin(worker, *graph) || graph->has_changes_waiting() ||
        !worker.scheduler.may_issue(*stream, graph->cost())) {
        return Outcome::hold(*stream, std::make_unique<HeldLaunch>(worker, command, *stream, graph));
    }
    return launch(worker, command, *stream, graph);
}

Outcome cuGraphUpload(Worker& worker, Command& command, codec::Slots<calls::cuGraphUpload>& slots) {
    using Call = calls::cuGraphUpload;
    StreamState* stream = nullptr;
    if (auto waiting = await_turn(worker, command, slots.at<Call::hStream>().value, stream)) {
        return std::move(*waiting);
    }
    const auto graph = executable(worker, slots.at<Call::hGraphExec>().value);
    if (graph == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    worker.scheduler.enter(worker.context_of(command));
    const CUresult result = driver::call(worker.api.cuGraphUpload, graph->driver(), stream->driver);
    worker.scheduler.issued(*stream);
    return result;
}

Outcome cuGraphExecUpdate_v2(Worker& worker, Command& command, codec::Slots<calls::cuGraphExecUpdate_v2>& slots) {
    using Call = calls::cuGraphExecUpdate_v2;
    CUgraph graph = slots.at<Call::hGraph>().value;
    const auto updated = executable(worker, slots.at<Call::hGraphExec>().value);
    if (updated == nullptr || translate(worker, graph) != CUDA_SUCCESS) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (const CUresult failed = failure_of(worker, graph); failed != CUDA_SUCCESS) {
        return failed;
    }
    if (auto waiting = await_launches(worker, command, slots.at<Call::hGraphExec>().value, updated, nullptr)) {
        return std::move(*waiting);
    }
    const auto answered = std::make_shared<codec::Slots<Call>>();  // these stay
    answered->read(command.body);
    CUgraphExecUpdateResultInfo& information = answered->at<Call::resultInfo>().object;
    const auto update = [updated, graph, &information] { return updated->update(graph, information); };
    const auto answer = [&worker, command, answered, updated, &information](CUresult result) {
        if (result == CUDA_SUCCESS) {
            updated->refused = CUDA_SUCCESS;
        }
        information.errorNode = worker.handles.client_handle(information.errorNode);
        information.errorFromNode = worker.handles.client_handle(information.errorFromNode);
        if (result != CUDA_SUCCESS && answered->at<Call::resultInfo>().value == nullptr) {
            worker.answer(command, result);
            return;
        }
        // It says why, which the caller gets also when the call has failed.
        worker.answer(command, result, false, codec::reply_bytes<Call>(*answered), [&](std::byte* place) {
            codec::Writer out(place);
            codec::write_reply<Call>(out, *answered);
        });
    };
    if (worker.gpu_may_wait_for_us()) {
        change_elsewhere(worker, command, update, answer);
    } else {
        worker.scheduler.enter(worker.context_of(command));
        answer(update());
    }
    return Outcome::answered();
}

Outcome cuGraphNodeSetEnabled(Worker& worker, Command& command, codec::Slots<calls::cuGraphNodeSetEnabled>& slots) {
    using Call = calls::cuGraphNodeSetEnabled;
    CUgraphNode node = slots.at<Call::hNode>().value;
    const auto graph = executable(worker, slots.at<Call::hGraphExec>().value);
    if (graph == nullptr || translate(worker, node) != CUDA_SUCCESS) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (auto waiting = await_launches(worker, command, slots.at<Call::hGraphExec>().value, graph, node)) {
        return std::move(*waiting);
    }
    worker.scheduler.enter(worker.context_of(command));
    return note_change(command, *graph, graph->enable(node, slots.at<Call::isEnabled>().value));
}

Outcome cuGraphNodeGetEnabled(Worker& worker, Command& command, codec::Slots<calls::cuGraphNodeGetEnabled>& slots) {
    using Call = calls::cuGraphNodeGetEnabled;
    CUgraphNode node = slots.at<Call::hNode>().value;
    const auto graph = executable(worker, slots.at<Call::hGraphExec>().value);
    if (graph == nullptr || translate(worker, node) != CUDA_SUCCESS) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (auto waiting = await_changes(worker, command, graph->has_changes_waiting())) {
        return std::move(*waiting);
    }
    worker.scheduler.enter(worker.context_of(command));
    const CUresult result = graph->own_node(node, node);
    return result != CUDA_SUCCESS ? result
                                  : driver::call(worker.api.cuGraphNodeGetEnabled, graph->driver(), node,
                                                 slots.at<Call::isEnabled>().value);
}

Outcome cuGraphKernelNodeSetAttribute(Worker& worker, Command& command,
                                      codec::Slots<calls::cuGraphKernelNodeSetAttribute>& slots) {
    using Call = calls::cuGraphKernelNodeSetAttribute;
    CUgraphNode node = slots.at<Call::hNode>().value;
    if (slots.at<Call::value>().value == nullptr || translate(worker, node) != CUDA_SUCCESS) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUlaunchAttribute attribute{};
    attribute.id = slots.at<Call::attr>().value;
    attribute.value = slots.at<Call::value>().object;
    CUresult result = CUDA_SUCCESS;
    codec::StructTraits<CUlaunchAttribute>::visit(attribute, [&](CUevent& event) {
        EventState* const state = worker.objects.event(event);
        if (state == nullptr) {
            result = CUDA_ERROR_INVALID_HANDLE;
            return;
        }
        state->in_graph = true;
        event = state->driver;
    });
    if (result != CUDA_SUCCESS) {
        return result;
    }
    worker.scheduler.enter(worker.context_of(command));
    return driver::call(worker.api.cuGraphKernelNodeSetAttribute, node, attribute.id,
                        static_cast<const CUkernelNodeAttrValue*>(&attribute.value));
}

Outcome gpGraphDot(Worker& worker, Command& command, codec::Slots<calls::gpGraphDot>& slots) {
    using Call = calls::gpGraphDot;
    constexpr std::size_t kMaxText = 256u << 20;
    CUgraph graph = slots.at<Call::graph>().value;
    if (translate(worker, graph) != CUDA_SUCCESS) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    worker.scheduler.enter(worker.context_of(command));
    // The driver writes to a file by name; this one is nobody else's.
    char path[] = "/tmp/gpupool-graph-XXXXXX";
    const int descriptor = mkstemp(path);
    if (descriptor < 0) {
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    const CUresult result = driver::call(worker.api.cuGraphDebugDotPrint, graph, static_cast<const char*>(path),
                                         slots.at<Call::flags>().value);
    worker.graphs.dot_text.clear();
    const off_t bytes = lseek(descriptor, 0, SEEK_END);
    const bool fits = bytes >= 0 && static_cast<std::uint64_t>(bytes) <= kMaxText;
    if (fits && result == CUDA_SUCCESS) {
        std::ifstream file(path);
        worker.graphs.dot_text.assign(std::istreambuf_iterator<char>(file), {});
    }
    close(descriptor);
    unlink(path);
    slots.at<Call::bytes>().object = worker.graphs.dot_text.size();
    return fits ? result : CUDA_ERROR_OUT_OF_MEMORY;
}

Outcome gpGraphDotRead(Worker& worker, Command&, codec::Slots<calls::gpGraphDotRead>& slots) {
    using Call = calls::gpGraphDotRead;
    const std::size_t offset = slots.at<Call::offset>().value, bytes = slots.at<Call::data_bytes>().value;
    auto& data = slots.at<Call::data>().object;
    if (offset > worker.graphs.dot_text.size() || bytes > worker.graphs.dot_text.size() - offset ||
        data.size() < bytes) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    std::copy_n(worker.graphs.dot_text.begin() + static_cast<std::ptrdiff_t>(offset), bytes, data.begin());
    return CUDA_SUCCESS;
}

}  // namespace gpupool::worker::handlers
