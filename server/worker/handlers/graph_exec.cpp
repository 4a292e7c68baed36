// Executable graphs: instantiation (on a helper thread, since the driver compiles), launches, changes.

#include <optional>
#include <utility>

#include "server/worker/dispatch/serve.h"
#include "server/worker/graphs/graph_changes.h"
#include "server/worker/graphs/graph_contents.h"

namespace gpupool::worker::handlers {
namespace {

constexpr std::size_t kMaxExecutables = 64u << 10;
constexpr std::size_t kLeastStackBytes = 1024;  // every context has room for that

void end_memory(Worker& worker, GraphExec& graph, const StreamState& stream, const BytesByDevice& charged,
                CUresult result) {
    if (!graph.memory.none()) {
        worker.memory.graphs.end(worker.api, graph.memory, stream.driver, charged, result);
        worker.memory_changed();
    }
}

// An upload gives a graph its memory without running it.
enum class Kind { launch, upload };

std::uint32_t cost_of(const GraphExec& graph, Kind kind) {
    return kind == Kind::launch ? graph.cost() : 1;
}

// Tells the client, once, that the executable is destroyed and its launches are complete.
void end_watch(Worker& worker, GraphExec& graph) {
    GraphExec::Watch& watch = graph.watch;
    if (!watch.destroyed || watch.running != 0 || graph.launches_queued != 0 || watch.ticket == 0) {
        return;
    }
    const std::uint64_t ticket = std::exchange(watch.ticket, 0);
    static std::uint32_t no_word = 0;  // no stream waits for this function
    if (worker.host_functions.emplace(ticket, HostFunctionWord{&no_word, 0, nullptr}).second) {
        worker.notify(codec::NoticeType::host_function, codec::HostFunctionNotice{ticket, CUDA_SUCCESS, 0});
    }
}

// One launch or upload of a graph, which is ready in its stream. The GPU may reach the graph's client steps before the
// driver's call returns.
class Launch {
  public:
    Launch(Worker& worker, Submission submission, std::shared_ptr<GraphExec> graph, Kind kind, BytesByDevice charged)
        : worker_(worker),
          submission_(std::move(submission)),
          stream_(submission_.stream()),
          graph_(std::move(graph)),
          kind_(kind),
          charged_(std::move(charged)),
          work_(worker.tracer, stream_, codec::TraceKind::graph) {
        if (has_steps()) {
            worker_.graph_steps.begin(graph_->steps());
        }
    }
    Launch(const Launch&) = delete;
    Launch& operator=(const Launch&) = delete;
    ~Launch() { worker_.memory.graphs.take_back(charged_); }  // if end() was never called
    void end(CUresult result) {
        work_.end(result);
        end_memory(worker_, *graph_, stream_, std::exchange(charged_, {}), result);
        submission_.end();
        if (result == CUDA_SUCCESS && graph_->watch.counts && kind_ == Kind::launch) {
            ++graph_->watch.running;
            worker_.scheduler.mark(stream_, [&worker = worker_, graph = graph_](CUresult) mutable {
                --graph->watch.running;
                end_watch(worker, *graph);
                if (worker.driver_closed()) {
                    worker.gate.when_open([graph = std::move(graph)] {});  // this may be its last reference
                }
            });
        }
        if (!has_steps()) {
            return;
        }
        if (result != CUDA_SUCCESS) {
            worker_.graph_steps.cancel(graph_->steps());
            return;
        }
        worker_.scheduler.mark(
            stream_, [&worker = worker_, steps = graph_->steps()](CUresult) { worker.graph_steps.end(steps); });
    }

    // The stream has ended.
    void cancel() { submission_.cancel(); }
    [[nodiscard]] const Submission& submission() const { return submission_; }

  private:
    [[nodiscard]] bool has_steps() const { return kind_ == Kind::launch && !graph_->steps()->list.empty(); }

    Worker& worker_;
    Submission submission_;
    StreamState& stream_;
    const std::shared_ptr<GraphExec> graph_;
    const Kind kind_;
    BytesByDevice charged_;
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
bool may_begin(const Worker& worker, const GraphExec& graph) {
    return graph.steps()->list.empty() || !worker.waiting_calls.any();
}

// Checks whether the launch is possible, and charges its memory, to be returned in end().
CUresult check_launch(Worker& worker, const Command& command, const StreamState& stream, const GraphExec& graph,
                      BytesByDevice& charged) {
    if (stream.capturing) {
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;  // the captured graph would use this graph's memory
    }
    if (graph.refused != CUDA_SUCCESS) {
        return graph.refused;
    }
    // A lower limit may have taken the room for its kernels' local memory, or there may never have been enough.
    CUresult result = worker.scheduler.enter(worker.context_of(command));
    if (result == CUDA_SUCCESS && graph.memory.stack_bytes > kLeastStackBytes) {
        result = worker.memory.charge_stack(worker.api, *stream.context, graph.memory.stack_bytes);
        result = worker.memory.account.fits(stream.context->device, 0) ? result : CUDA_ERROR_OUT_OF_MEMORY;
    }
    return result != CUDA_SUCCESS ? result
                                  : worker.memory.graphs.begin(worker.api, graph.memory, stream.driver, charged);
}

CUresult launch(Worker& worker, const Command& command, Submission submission, const std::shared_ptr<GraphExec>& graph,
                Kind kind) {
    BytesByDevice charged;
    CUresult result = check_launch(worker, command, submission.stream(), *graph, charged);
    if (result != CUDA_SUCCESS) {
        submission.cancel();
        return result;
    }
    Launch launch(worker, std::move(submission), graph, kind, std::move(charged));
    result = call_driver(launch.submission(), worker.api, kind, graph->driver(), launch.submission().stream().driver);
    launch.end(result);
    return result;
}

// A launch or upload that has to wait, or whose driver call may block. It keeps its graph, which the program may
// destroy before it is issued. While a helper launches the graph, a second call for it would block in the driver: later
// launches wait behind this one in the graph's queue.
class QueuedLaunch final : public EntryOfCommand {
  public:
    QueuedLaunch(Worker& worker, Command command, StreamState& stream, std::shared_ptr<GraphExec> graph, Kind of_kind)
        : EntryOfCommand(worker, std::move(command)), stream_(stream), graph_(std::move(graph)), kind_(of_kind) {
        command_.keep_header(kQueuedCostBytes);
        kind = calls::Kind::work;
        cost = cost_of(*graph_, kind_);
        ++graph_->launches_queued;
    }
    ~QueuedLaunch() override { --graph_->launches_queued; }
    Reason advance() override {
        if (!launch_) {
            if (!may_begin(worker_, *graph_)) {
                return Reason::driver_call;
            }
            const Tracer::Issue issue(worker_.tracer, command_.header, waited_for());
            Submission granted = std::move(*std::exchange(submission, std::nullopt));
            if (taken_at_once(*graph_, stream_)) {
                worker_.answer(command_, launch(worker_, command_, std::move(granted), graph_, kind_));
                return Reason::none;
            }
            BytesByDevice charged;
            const CUresult result = check_launch(worker_, command_, stream_, *graph_, charged);
            if (result != CUDA_SUCCESS) {
                granted.cancel();
                worker_.answer(command_, result);
                return Reason::none;
            }
            begin_elsewhere(std::move(granted), std::move(charged));
        }
        if (!call_->result) {
            return Reason::driver_call;
        }
        launch_->end(*call_->result);
        worker_.answer(command_, *call_->result);
        return Reason::none;
    }
    void abandon(CUresult result) override {
        if (launch_) {
            launch_->cancel();
        }
        EntryOfCommand::abandon(result);
    }

  private:
    void begin_elsewhere(Submission granted, BytesByDevice charged) {
        const auto permit = std::make_shared<Submission::Lent>(granted.lend());
        launch_.emplace(worker_, std::move(granted), graph_, kind_, std::move(charged));
        call_ = WaitingCall::run(worker_.waiting_calls, worker_.api, stream_.context->driver,
                                 [&api = worker_.api, permit, kind = kind_, graph = graph_, stream = stream_.driver] {
                                     return call_driver(*permit, api, kind, graph->driver(), stream);
                                 });
    }

    StreamState& stream_;
    const std::shared_ptr<GraphExec> graph_;
    const Kind kind_;
    std::optional<Launch> launch_;  // set once a helper makes the driver call
    std::shared_ptr<WaitingCall> call_;
};

Outcome put(Worker& worker, Command& command, CUgraphExec executable, CUstream in, Kind kind) {
    CUresult result = CUDA_SUCCESS;
    StreamState* const stream = worker.stream_of(command, in, result);
    if (stream == nullptr) {
        return result;
    }
    const auto graph = worker.graphs.executable(executable);
    if (graph == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    std::optional<Submission> submission;
    if (taken_at_once(*graph, *stream) && may_begin(worker, *graph) && graph->queue.empty()) {
        submission = worker.gate.enter(*stream, calls::Kind::work, cost_of(*graph, kind));
    }
    if (!submission) {
        graph->queue.name = codec::to_wire(executable);
        worker.gate.queue(*stream, std::make_unique<QueuedLaunch>(worker, command, *stream, graph, kind),
                          &graph->queue);
        return Outcome::answered();
    }
    return launch(worker, command, std::move(*submission), graph, kind);
}

// Charges the nodes of a new executable.
bool charge_nodes(Worker& worker, CUcontext context, std::uint64_t nodes) {
    const ContextState* const state = worker.objects.context(context);
    for (const auto& [client, executable] : worker.graphs.executables) {
        nodes += executable->cost();
    }
    const std::uint64_t bytes = worker.memory.driver.needed_for_nodes(nodes);
    if (state == nullptr || (bytes != 0 && !worker.memory.account.charge(state->device, bytes))) {
        return state == nullptr;
    }
    worker.memory.driver.note_nodes(nodes);
    return true;
}

// The driver has made room for the local memory of the graph's kernels. If that is beyond the quota, launches say so.
void learn_stack(Worker& worker, CUcontext context, const std::shared_ptr<GraphExec>& graph) {
    worker.gate.when_open([&worker, context, graph] {
        const ContextState* const state = worker.objects.context(context);
        if (state != nullptr && worker.scheduler.enter(state) == CUDA_SUCCESS) {
            graph->memory.stack_bytes = worker.memory.driver.learn_stack(worker.api, *state);
        }
    });
}

}  // namespace

Outcome gpGraphInstantiate(Worker& worker, Command& command, codec::Slots<calls::gpGraphInstantiate>& slots) {
    using Call = calls::gpGraphInstantiate;
    CUgraph graph = slots.at<Call::graph>().value;
    if (worker.handles.translate(graph) != CUDA_SUCCESS) {
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
        ExpansionParts parts;
        CUgraphNode error_node = nullptr;
        int outcome = 0;
        CUresult result = CUDA_SUCCESS;
    };
    const auto work = std::make_shared<Work>();
    work->made = std::make_shared<GraphExec>(worker.api, worker.pinned);
    work->parts = take_parts(worker, *context, graph);
    const driver::Api& api = worker.api;
    worker.waiting_calls.run(
        [&api, work, graph, context = context->driver, flags = slots.at<Call::flags>().value] {
            work->result = in_context(api, context, [&] {
                return work->made->instantiate(graph, work->parts, flags, work->error_node, work->outcome);
            });
        },
        [&worker, command, work, client_context = context->client,
         client = codec::from_wire<CUgraphExec>(slots.at<Call::executable>().minted)] {
            put_stand_ins(worker, work->parts);
            learn_stack(worker, client_context, work->made);
            if (work->result == CUDA_SUCCESS && worker.graphs.executables.contains(client)) {
                // The client gave the handle to another executable meanwhile.
                work->result = CUDA_ERROR_INVALID_VALUE;
            }
            if (work->result == CUDA_SUCCESS && !worker.memory.graphs.fits_quota(work->made->memory)) {
                work->result = CUDA_ERROR_OUT_OF_MEMORY;
            }
            if (work->result == CUDA_SUCCESS && !charge_nodes(worker, client_context, work->made->cost())) {
                work->result = CUDA_ERROR_OUT_OF_MEMORY;
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
    if (auto waiting = await_changes(worker, command, it->second->changes_queued != 0)) {
        return std::move(*waiting);
    }
    // Queued and running launches keep the executable.
    const std::shared_ptr<GraphExec> graph = it->second;
    worker.graphs.executables.erase(it);
    graph->watch.destroyed = true;
    end_watch(worker, *graph);
    return CUDA_SUCCESS;
}

Outcome gpGraphExecWatch(Worker& worker, Command&, codec::Slots<calls::gpGraphExecWatch>& slots) {
    using Call = calls::gpGraphExecWatch;
    const auto graph = worker.graphs.executable(slots.at<Call::executable>().value);
    if (graph == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    graph->watch.counts = true;
    graph->watch.ticket = slots.at<Call::ticket>().value;
    return CUDA_SUCCESS;
}

Outcome gpGraphExecOnDevice(Worker& worker, Command& command, codec::Slots<calls::gpGraphExecOnDevice>& slots) {
    using Call = calls::gpGraphExecOnDevice;
    const CUgraphExec client = slots.at<Call::executable>().value;
    const auto it = worker.graphs.executables.find(client);
    if (it == worker.graphs.executables.end() || it->second->changes_queued != 0 || it->second->launches_queued != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const std::shared_ptr<GraphExec> graph = it->second;
    const CUgraphExec handle = graph->driver();
    worker.scheduler.enter(worker.context_of(command));
    cuuint64_t flags = 0;
    if (driver::call(worker.api.cuGraphExecGetFlags, handle, &flags) != CUDA_SUCCESS ||
        (flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) == 0) {
        return CUDA_ERROR_INVALID_VALUE;  // the driver's other handles stay in the worker
    }
    if (codec::kind_of(codec::to_wire(handle)) != codec::HandleKind::none ||
        worker.graphs.executables.contains(handle)) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    worker.handles.unbind(codec::to_wire(client));
    worker.graphs.executables.erase(it);
    worker.graphs.executables[handle] = graph;
    worker.handles.bind(handle, handle);
    slots.at<Call::handle>().object = codec::to_wire(handle);
    return CUDA_SUCCESS;
}

Outcome cuGraphLaunch(Worker& worker, Command& command, codec::Slots<calls::cuGraphLaunch>& slots) {
    using Call = calls::cuGraphLaunch;
    return put(worker, command, slots.at<Call::hGraphExec>().value, slots.at<Call::hStream>().value, Kind::launch);
}

Outcome cuGraphUpload(Worker& worker, Command& command, codec::Slots<calls::cuGraphUpload>& slots) {
    using Call = calls::cuGraphUpload;
    return put(worker, command, slots.at<Call::hGraphExec>().value, slots.at<Call::hStream>().value, Kind::upload);
}

Outcome cuGraphExecUpdate_v2(Worker& worker, Command& command, codec::Slots<calls::cuGraphExecUpdate_v2>& slots) {
    using Call = calls::cuGraphExecUpdate_v2;
    CUgraph graph = slots.at<Call::hGraph>().value;
    const auto updated = worker.graphs.executable(slots.at<Call::hGraphExec>().value);
    if (updated == nullptr || worker.handles.translate(graph) != CUDA_SUCCESS) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (const CUresult failed = failure_of(worker, graph); failed != CUDA_SUCCESS) {
        return failed;
    }
    if (auto waiting = await_launches(worker, command, slots.at<Call::hGraphExec>().value, updated, nullptr)) {
        return std::move(*waiting);
    }
    const auto answered = std::make_shared<codec::Slots<Call>>();  // they outlive this handler
    answered->read(command.body);
    CUgraphExecUpdateResultInfo& information = answered->at<Call::resultInfo>().object;
    const ContextState* const context = worker.context_of(command);
    if (context == nullptr) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    const auto parts = std::make_shared<ExpansionParts>(take_parts(worker, *context, graph));
    const auto update = [updated, graph, parts, &information] { return updated->update(graph, *parts, information); };
    const auto answer = [&worker, command, answered, updated, parts, &information](CUresult result) {
        put_stand_ins(worker, *parts);
        if (result == CUDA_SUCCESS) {
            updated->refused = CUDA_SUCCESS;
        }
        information.errorNode = worker.handles.client_handle(information.errorNode);
        information.errorFromNode = worker.handles.client_handle(information.errorFromNode);
        if (result != CUDA_SUCCESS && answered->at<Call::resultInfo>().value == nullptr) {
            worker.answer(command, result);
            return;
        }
        // The information says why, and the caller gets it even if the call has failed.
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
    const auto graph = worker.graphs.executable(slots.at<Call::hGraphExec>().value);
    if (graph == nullptr || worker.handles.translate(node) != CUDA_SUCCESS) {
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
    const auto graph = worker.graphs.executable(slots.at<Call::hGraphExec>().value);
    if (graph == nullptr || worker.handles.translate(node) != CUDA_SUCCESS) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (auto waiting = await_changes(worker, command, graph->changes_queued != 0)) {
        return std::move(*waiting);
    }
    worker.scheduler.enter(worker.context_of(command));
    const CUresult result = graph->own_node(node, node);
    return result != CUDA_SUCCESS ? result
                                  : driver::call(worker.api.cuGraphNodeGetEnabled, graph->driver(), node,
                                                 slots.at<Call::isEnabled>().value);
}

}  // namespace gpupool::worker::handlers
