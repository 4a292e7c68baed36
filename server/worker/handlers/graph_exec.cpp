// Executable graphs: instantiation (on a helper thread, since the driver compiles), launches, changes.

#include <optional>
#include <utility>

#include "server/worker/graphs/graph_book.h"
#include "server/worker/graphs/graph_changes.h"
#include "server/worker/graphs/graph_contents.h"
#include "server/worker/graphs/graph_steps.h"
#include "server/worker/handlers/handlers.h"
#include "server/worker/memory/pinned_memory.h"
#include "server/worker/scheduling/driver_door.h"

namespace gpupool::worker::handlers {
namespace {

constexpr std::size_t kMaxExecutables = 64u << 10;
constexpr std::size_t kLeastStackBytes = 1024;  // every context has room for that

void end_memory(SessionView& session, GraphExec& graph, const StreamState& stream, GraphMemory::Charge charge,
                CUresult result) {
    if (!graph.memory.none()) {
        session.memory.graphs.end(session.api, graph.memory, stream.driver, std::move(charge), result);
    }
}

// An upload gives a graph its memory without running it.
enum class Kind { launch, upload };

std::uint32_t cost_of(const GraphExec& graph, Kind kind) {
    return kind == Kind::launch ? graph.cost() : 1;
}

// Tells the client, once, that the executable is destroyed and its launches are complete.
void end_watch(GraphExecView& session, GraphExec& graph) {
    GraphExec::Watch& watch = graph.watch;
    if (!watch.destroyed || watch.running != 0 || graph.launches_queued != 0 || watch.ticket == 0) {
        return;
    }
    const std::uint64_t ticket = std::exchange(watch.ticket, 0);
    static std::uint32_t no_word = 0;  // no stream waits for this function
    if (session.host_functions.emplace(ticket, HostFunctionWord{&no_word, 0, nullptr}).second) {
        session.answers.notify(codec::NoticeType::host_function, codec::HostFunctionNotice{ticket, CUDA_SUCCESS, 0});
    }
}

// One launch or upload of a graph, which is ready in its stream. The GPU may reach the graph's client steps before the
// driver's call returns.
class Launch {
  public:
    Launch(GraphExecView& session, Submission submission, std::shared_ptr<GraphExec> graph, Kind kind,
           GraphMemory::Charge charge)
        : session_(session),
          submission_(std::move(submission)),
          stream_(submission_.stream()),
          graph_(std::move(graph)),
          kind_(kind),
          charge_(std::move(charge)),
          work_(session.tracer, stream_, codec::TraceKind::graph) {
        if (has_steps()) {
            session_.graph_steps.begin(graph_->steps());
        }
    }
    Launch(const Launch&) = delete;
    Launch& operator=(const Launch&) = delete;
    void end(CUresult result) {
        work_.end(result);
        end_memory(session_, *graph_, stream_, std::move(charge_), result);
        submission_.end();
        if (result == CUDA_SUCCESS && graph_->watch.counts && kind_ == Kind::launch) {
            ++graph_->watch.running;
            session_.scheduler.mark(stream_, [&session = session_, graph = graph_](CUresult) mutable {
                --graph->watch.running;
                end_watch(session, *graph);
                if (session.door.closed()) {
                    session.gate.when_open([graph = std::move(graph)] {});  // this may be its last reference
                }
            });
        }
        if (!has_steps()) {
            return;
        }
        if (result != CUDA_SUCCESS) {
            session_.graph_steps.cancel(graph_->steps());
            return;
        }
        session_.scheduler.mark(
            stream_, [&session = session_, steps = graph_->steps()](CUresult) { session.graph_steps.end(steps); });
    }

    // The stream has ended.
    void cancel() {
        submission_.cancel();
        if (has_steps()) {
            session_.graph_steps.cancel(graph_->steps());
        }
    }
    [[nodiscard]] const Submission& submission() const { return submission_; }

  private:
    [[nodiscard]] bool has_steps() const { return kind_ == Kind::launch && !graph_->steps()->list.empty(); }

    GraphExecView& session_;
    Submission submission_;
    StreamState& stream_;
    const std::shared_ptr<GraphExec> graph_;
    const Kind kind_;
    GraphMemory::Charge charge_;
    Tracer::Work work_;
};

CUresult call_driver(const driver::WorkPermit& permit, const driver::Api& api, Kind kind, CUgraphExec graph,
                     CUstream stream) {
    return kind == Kind::launch ? driver::call(permit, api.cuGraphLaunch, graph, stream)
                                : driver::call(permit, api.cuGraphUpload, graph, stream);
}

// While earlier work does not complete, the driver accepts a graph of 2,000 nodes, but blocks with 5,000
// (docs/driver-facts.md).
constexpr std::uint32_t kMaxNodesAtOnce = 2000;

// Will the driver take it without blocking until the GPU has caught up?
bool taken_at_once(const GraphExec& graph, const StreamState& stream) {
    return graph.cost() <= kMaxNodesAtOnce && !graph.memory.may_wait(stream.driver);
}

// May the driver call begin? While the driver launches a graph with client steps, a helper's call that waits for the
// GPU could begin. It would wait for these steps and block the dispatcher's launch (observed, docs/driver-facts.md).
bool may_begin(const SessionView& session, const GraphExec& graph) {
    return graph.steps()->list.empty() || !session.waiting_calls.any();
}

// May a launch have no room?
bool may_need_room(const GraphExec& graph) {
    return !graph.memory.none() || graph.memory.stack_bytes > kLeastStackBytes;
}

// Charges the memory of the graph's next launch in `stream`.
CUresult charge_memory(GraphExecView& session, const Command& command, const StreamState& stream,
                       const GraphExec& graph, GraphMemory::Charge& charge) {
    if (graph.refused != CUDA_SUCCESS) {
        return graph.refused;
    }
    // A lower limit may have taken the room for its kernels' local memory, or there may never have been enough.
    CUresult result = session.scheduler.enter(session.context_of(command));
    if (result == CUDA_SUCCESS && graph.memory.stack_bytes > kLeastStackBytes) {
        const ContextState& context = *stream.context;
        const bool fits =
            session.memory.charge_limit(session.api, context, CU_LIMIT_STACK_SIZE, graph.memory.stack_bytes) &&
            session.memory.account.fits(context.device, 0);
        result = fits ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (result != CUDA_SUCCESS || charge.any()) {
        return result;
    }
    return session.memory.graphs.charge(session.api, graph.memory, stream.driver, charge);
}

// Checks whether the launch is possible, and begins it. `charge`: what was reserved for it, if anything.
CUresult begin_launch(GraphExecView& session, const Command& command, Submission submission,
                      const std::shared_ptr<GraphExec>& graph, Kind kind, GraphMemory::Charge charge,
                      std::optional<Launch>& begun) {
    CUresult result = submission.stream().capturing
                          ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED  // the captured graph would use this graph's memory
                          : charge_memory(session, command, submission.stream(), *graph, charge);
    if (result != CUDA_SUCCESS) {
        submission.cancel();
        return result;
    }
    begun.emplace(session, std::move(submission), graph, kind, std::move(charge));
    return CUDA_SUCCESS;
}

CUresult launch(GraphExecView& session, const Command& command, Submission submission,
                const std::shared_ptr<GraphExec>& graph, Kind kind, GraphMemory::Charge charge) {
    std::optional<Launch> launch;
    CUresult result = begin_launch(session, command, std::move(submission), graph, kind, std::move(charge), launch);
    if (result == CUDA_SUCCESS) {
        const Submission& permit = launch->submission();
        result = call_driver(permit, session.api, kind, graph->driver(), permit.stream().driver);
        launch->end(result);
    }
    return result;
}

// A launch or upload that has to wait, or whose driver call may block. It keeps its graph, which the program may
// destroy before it is issued. While a helper launches the graph, a second call for it would block in the driver: later
// launches wait behind this one in the graph's queue.
class QueuedLaunch final : public EntryOfCommand<GraphExecView> {
  public:
    QueuedLaunch(GraphExecView& session, Command command, StreamState& stream, std::shared_ptr<GraphExec> graph,
                 Kind of_kind, GraphMemory::Charge charge)
        : EntryOfCommand(session, std::move(command)),
          stream_(stream),
          graph_(std::move(graph)),
          kind_(of_kind),
          charge_(std::move(charge)) {
        command_.keep_header(kQueuedCostBytes);
        kind = calls::Kind::work;
        cost = cost_of(*graph_, kind_);
        ++graph_->launches_queued;
        graph_->queued_in = &stream;
    }
    ~QueuedLaunch() override {
        if (!over_) {
            --graph_->launches_queued;
        }
    }
    Reason advance() override {
        const Reason reason = launch();
        if (reason == Reason::none) {
            note_over();
        }
        return reason;
    }
    void abandon(CUresult result) override {
        if (launch_) {
            launch_->cancel();
        }
        EntryOfCommand::abandon(result);
        note_over();
    }

  private:
    void note_over() {
        over_ = true;
        --graph_->launches_queued;
        end_watch(session_, *graph_);
    }
    Reason launch() {
        if (!launch_) {
            if (!may_begin(session_, *graph_)) {
                return Reason::driver_call;
            }
            const Tracer::Issue issue(session_.tracer, command_.header, waited_for());
            Submission granted = std::move(*std::exchange(submission, std::nullopt));
            if (taken_at_once(*graph_, stream_)) {
                session_.answers.give(command_, handlers::launch(session_, command_, std::move(granted), graph_, kind_,
                                                                 std::move(charge_)));
                return Reason::none;
            }
            const CUresult result =
                begin_launch(session_, command_, std::move(granted), graph_, kind_, std::move(charge_), launch_);
            if (result != CUDA_SUCCESS) {
                session_.answers.give(command_, result);
                return Reason::none;
            }
            call_driver_elsewhere();
        }
        if (!call_->result) {
            return Reason::driver_call;
        }
        launch_->end(*call_->result);
        session_.answers.give(command_, *call_->result);
        return Reason::none;
    }
    void call_driver_elsewhere() {
        const auto permit = std::make_shared<Submission::Lent>(launch_->submission().lend());
        call_ = WaitingCall::run(session_.waiting_calls, session_.api, stream_.context->driver,
                                 [&api = session_.api, permit, kind = kind_, graph = graph_, stream = stream_.driver] {
                                     return call_driver(*permit, api, kind, graph->driver(), stream);
                                 });
    }

    StreamState& stream_;
    const std::shared_ptr<GraphExec> graph_;
    const Kind kind_;
    GraphMemory::Charge charge_;
    bool over_ = false;
    std::optional<Launch> launch_;  // set once a helper makes the driver call
    std::shared_ptr<WaitingCall> call_;
};

Outcome put(GraphExecView& session, Command& command, CUgraphExec executable, CUstream in, Kind kind) {
    CUresult result = CUDA_SUCCESS;
    StreamState* const stream = session.stream_of(command, in, result);
    if (stream == nullptr) {
        return result;
    }
    const auto graph = session.graphs.executable(executable);
    if (graph == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    GraphMemory::Charge charge = kind == Kind::launch ? std::move(graph->reserved) : GraphMemory::Charge();
    std::optional<Submission> submission;
    if (taken_at_once(*graph, *stream) && may_begin(session, *graph) && graph->queue.empty()) {
        submission = session.gate.enter(*stream, calls::Kind::work, cost_of(*graph, kind));
    }
    if (!submission) {
        graph->queue.name = codec::to_wire(executable);
        session.gate.queue(*stream,
                           std::make_unique<QueuedLaunch>(session, command, *stream, graph, kind, std::move(charge)),
                           &graph->queue);
        return Outcome::answered();
    }
    return launch(session, command, std::move(*submission), graph, kind, std::move(charge));
}

struct Instantiation {
    std::shared_ptr<GraphExec> made;
    ExpansionParts parts;
    CUgraphNode error_node = nullptr;
    int outcome = 0;
    CUresult result = CUDA_SUCCESS;
};

// Charges what the driver took for the executable, which becomes the client's.
CUresult keep(GraphExecView& session, CUgraphExec client, CUcontext context, const std::shared_ptr<GraphExec>& made) {
    if (session.graphs.executables.contains(client)) {
        return CUDA_ERROR_INVALID_VALUE;  // the client gave the handle to another executable meanwhile
    }
    if (!session.memory.graphs.fits_quota(made->memory)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (const ContextState* const state = session.objects.context(context); state != nullptr) {
        std::uint64_t nodes = made->cost();
        for (const auto& [handle, executable] : session.graphs.executables) {
            nodes += executable->cost();
        }
        if (!session.memory.charge_nodes(session.api, state->device, nodes)) {
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    session.graphs.executables[client] = made;
    session.handles.bind(client, made->driver());
    return CUDA_SUCCESS;
}

}  // namespace

Outcome gpGraphNeedsRoom(GraphView& session, Command&, codec::Slots<calls::gpGraphNeedsRoom>& slots) {
    using Call = calls::gpGraphNeedsRoom;
    const auto graph = session.graphs.executable(slots.at<Call::executable>().value);
    if (graph == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    slots.at<Call::needed>().object = may_need_room(*graph) ? 1 : 0;
    return CUDA_SUCCESS;
}

// Charges the memory for the launch that follows, so that the program learns at once if the graph does not fit.
Outcome gpGraphReserve(GraphExecView& session, Command& command, codec::Slots<calls::gpGraphReserve>& slots) {
    using Call = calls::gpGraphReserve;
    CUresult result = CUDA_SUCCESS;
    StreamState* const stream = session.stream_of(command, slots.at<Call::stream>().value, result);
    if (stream == nullptr) {
        return result;
    }
    const auto graph = session.graphs.executable(slots.at<Call::executable>().value);
    if (graph == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    slots.at<Call::needed>().object = may_need_room(*graph) ? 1 : 0;
    if (graph->reserved.any() || (graph->launches_queued != 0 && graph->queued_in == stream)) {
        return CUDA_SUCCESS;  // a launch is on its way whose memory this one will use
    }
    result = charge_memory(session, command, *stream, *graph, graph->reserved);
    if (result == CUDA_ERROR_OUT_OF_MEMORY && !command.ready && session.gate.queues_any()) {
        return serve_after_all(session, command);  // launches that are queued may take less than was charged for them
    }
    return result;
}

Outcome gpGraphInstantiate(GraphExecView& session, Command& command, codec::Slots<calls::gpGraphInstantiate>& slots) {
    using Call = calls::gpGraphInstantiate;
    CUgraph graph = slots.at<Call::graph>().value;
    if (session.handles.translate(graph) != CUDA_SUCCESS) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const ContextState* const context = session.context_of(command);
    if (context == nullptr) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (session.graphs.executables.size() >= kMaxExecutables) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (const CUresult failed = failure_of(session, graph); failed != CUDA_SUCCESS) {
        return failed;
    }
    const auto work = std::make_shared<Instantiation>();
    work->made = std::make_shared<GraphExec>(session.api, session.pinned);
    work->parts = take_parts(session, *context, graph);
    const auto client = codec::from_wire<CUgraphExec>(slots.at<Call::executable>().minted);
    const auto answer = [&session, command, work, client, context = context->client] {
        if (work->result == CUDA_SUCCESS) {
            work->result = keep(session, client, context, work->made);
        }
        session.answers.give(command, work->result, false, 16, [&](std::byte* place) {
            codec::Writer out(place);
            out.value(session.handles.client_handle(work->error_node));
            out.value(work->outcome);
        });
        work->made.reset();  // while the driver is open
    };
    session.waiting_calls.run(
        [&api = session.api, work, graph, context = context->driver, flags = slots.at<Call::flags>().value] {
            work->result = in_context(api, context, [&] {
                return work->made->instantiate(graph, work->parts, flags, work->error_node, work->outcome);
            });
        },
        [&session, work, answer, context = context->client] {
            put_stand_ins(session, work->parts);
            session.gate.when_open(
                [&session, work, answer, context] { charge_stack_of(session, context, *work->made, answer); });
        });
    return Outcome::answered();
}

Outcome cuGraphExecDestroy(GraphExecView& session, Command& command, codec::Slots<calls::cuGraphExecDestroy>& slots) {
    const auto it = session.graphs.executables.find(slots.at<calls::cuGraphExecDestroy::hGraphExec>().value);
    if (it == session.graphs.executables.end()) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (auto waiting = await_changes(session, command, it->second->changes_queued != 0)) {
        return std::move(*waiting);
    }
    // Queued and running launches keep the executable.
    const std::shared_ptr<GraphExec> graph = it->second;
    session.graphs.executables.erase(it);
    graph->watch.destroyed = true;
    end_watch(session, *graph);
    return CUDA_SUCCESS;
}

Outcome gpGraphExecWatch(GraphExecView& session, Command&, codec::Slots<calls::gpGraphExecWatch>& slots) {
    using Call = calls::gpGraphExecWatch;
    const auto graph = session.graphs.executable(slots.at<Call::executable>().value);
    if (graph == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    graph->watch.counts = true;
    graph->watch.ticket = slots.at<Call::ticket>().value;
    return CUDA_SUCCESS;
}

Outcome gpGraphExecOnDevice(GraphExecView& session, Command& command, codec::Slots<calls::gpGraphExecOnDevice>& slots) {
    using Call = calls::gpGraphExecOnDevice;
    const CUgraphExec client = slots.at<Call::executable>().value;
    const auto it = session.graphs.executables.find(client);
    if (it == session.graphs.executables.end() || it->second->changes_queued != 0 || it->second->launches_queued != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const std::shared_ptr<GraphExec> graph = it->second;
    const CUgraphExec handle = graph->driver();
    session.scheduler.enter(session.context_of(command));
    cuuint64_t flags = 0;
    if (driver::call(session.api.cuGraphExecGetFlags, handle, &flags) != CUDA_SUCCESS ||
        (flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) == 0) {
        return CUDA_ERROR_INVALID_VALUE;  // the driver's other handles stay in the session
    }
    if (codec::kind_of(codec::to_wire(handle)) != codec::HandleKind::none ||
        session.graphs.executables.contains(handle)) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    session.handles.unbind(codec::to_wire(client));
    session.graphs.executables.erase(it);
    session.graphs.executables[handle] = graph;
    session.handles.bind(handle, handle);
    slots.at<Call::handle>().object = codec::to_wire(handle);
    return CUDA_SUCCESS;
}

Outcome cuGraphLaunch(GraphExecView& session, Command& command, codec::Slots<calls::cuGraphLaunch>& slots) {
    using Call = calls::cuGraphLaunch;
    return put(session, command, slots.at<Call::hGraphExec>().value, slots.at<Call::hStream>().value, Kind::launch);
}

Outcome cuGraphUpload(GraphExecView& session, Command& command, codec::Slots<calls::cuGraphUpload>& slots) {
    using Call = calls::cuGraphUpload;
    return put(session, command, slots.at<Call::hGraphExec>().value, slots.at<Call::hStream>().value, Kind::upload);
}

Outcome cuGraphExecUpdate_v2(GraphExecView& session, Command& command,
                             codec::Slots<calls::cuGraphExecUpdate_v2>& slots) {
    using Call = calls::cuGraphExecUpdate_v2;
    CUgraph graph = slots.at<Call::hGraph>().value;
    const auto updated = session.graphs.executable(slots.at<Call::hGraphExec>().value);
    if (updated == nullptr || session.handles.translate(graph) != CUDA_SUCCESS) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (const CUresult failed = failure_of(session, graph); failed != CUDA_SUCCESS) {
        return failed;
    }
    if (auto waiting = await_launches(session, command, slots.at<Call::hGraphExec>().value, updated, nullptr)) {
        return std::move(*waiting);
    }
    const auto answered = std::make_shared<codec::Slots<Call>>();  // they outlive this handler
    answered->read(command.body);
    CUgraphExecUpdateResultInfo& information = answered->at<Call::resultInfo>().object;
    const ContextState* const context = session.context_of(command);
    if (context == nullptr) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    const auto parts = std::make_shared<ExpansionParts>(take_parts(session, *context, graph));
    const auto update = [updated, graph, parts, &information] { return updated->update(graph, *parts, information); };
    const auto answer = [&session, command, answered, &information](CUresult result) {
        information.errorNode = session.handles.client_handle(information.errorNode);
        information.errorFromNode = session.handles.client_handle(information.errorFromNode);
        if (result != CUDA_SUCCESS && answered->at<Call::resultInfo>().value == nullptr) {
            session.answers.give(command, result);
            return;
        }
        // The information says why, and the caller gets it even if the call has failed.
        session.answers.give(command, result, false, codec::reply_bytes<Call>(*answered), [&](std::byte* place) {
            codec::Writer out(place);
            codec::write_reply<Call>(out, *answered);
        });
    };
    const auto note = [&session, updated, parts](CUresult result) {
        put_stand_ins(session, *parts);
        if (result == CUDA_SUCCESS) {
            updated->refused = CUDA_SUCCESS;
        }
        return result;
    };
    const auto charge_and_answer = [&session, updated, answer, context = context->client](CUresult result) {
        charge_stack_of(session, context, *updated, [answer, result] { answer(result); });
    };
    if (session.door.gpu_may_wait_for_us()) {
        change_elsewhere(session, command, update, [&session, note, charge_and_answer](CUresult result) {
            session.gate.when_open([charge_and_answer, noted = note(result)] { charge_and_answer(noted); });
        });
    } else {
        session.scheduler.enter(session.context_of(command));
        charge_and_answer(note(update()));
    }
    return Outcome::answered();
}

Outcome cuGraphNodeSetEnabled(GraphExecView& session, Command& command,
                              codec::Slots<calls::cuGraphNodeSetEnabled>& slots) {
    using Call = calls::cuGraphNodeSetEnabled;
    CUgraphNode node = slots.at<Call::hNode>().value;
    const auto graph = session.graphs.executable(slots.at<Call::hGraphExec>().value);
    if (graph == nullptr || session.handles.translate(node) != CUDA_SUCCESS) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (auto waiting = await_launches(session, command, slots.at<Call::hGraphExec>().value, graph, node)) {
        return std::move(*waiting);
    }
    session.scheduler.enter(session.context_of(command));
    return note_change(command, *graph, graph->enable(node, slots.at<Call::isEnabled>().value));
}

Outcome cuGraphNodeGetEnabled(GraphExecView& session, Command& command,
                              codec::Slots<calls::cuGraphNodeGetEnabled>& slots) {
    using Call = calls::cuGraphNodeGetEnabled;
    CUgraphNode node = slots.at<Call::hNode>().value;
    const auto graph = session.graphs.executable(slots.at<Call::hGraphExec>().value);
    if (graph == nullptr || session.handles.translate(node) != CUDA_SUCCESS) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (auto waiting = await_changes(session, command, graph->changes_queued != 0)) {
        return std::move(*waiting);
    }
    session.scheduler.enter(session.context_of(command));
    const CUresult result = graph->own_node(node, node);
    return result != CUDA_SUCCESS ? result
                                  : driver::call(session.api.cuGraphNodeGetEnabled, graph->driver(), node,
                                                 slots.at<Call::isEnabled>().value);
}

}  // namespace gpupool::worker::handlers
