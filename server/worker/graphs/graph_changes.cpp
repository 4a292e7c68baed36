#include "server/worker/graphs/graph_changes.h"

#include <algorithm>
#include <utility>

#include "server/worker/graphs/graph_book.h"

namespace gpupool::worker {
namespace {

// A change that waits for the launches before it.
class QueuedChange final : public QueuedCommand {
  public:
    QueuedChange(GraphView& session, const Command& command, std::shared_ptr<GraphExec> graph, CUgraphNode node)
        : QueuedCommand(session, command),
          waiting_(session.graphs.changes_waiting),
          graph_(std::move(graph)),
          node_(node) {
        ++graph_->changes_queued;
        waiting_.insert(node);
    }
    ~QueuedChange() override {
        --graph_->changes_queued;
        waiting_.erase(waiting_.find(node_));
    }
    // May `command`, a later change with no launch between, take its place?
    [[nodiscard]] bool is_replaced_by(const Command& command, CUgraphNode node) const {
        return node != nullptr && node == node_ && !command.reply_wanted() && !command_.reply_wanted() &&
               command.header.opcode == command_.header.opcode;
    }
    // Does it change all of the executable?
    [[nodiscard]] bool is_of_all() const { return node_ == nullptr; }
    void replace(const Command& command) {
        command_ = command;
        command_.ready = true;
        command_.keep_body(kQueuedCostBytes);
    }

  private:
    decltype(GraphBook::changes_waiting)& waiting_;
    const std::shared_ptr<GraphExec> graph_;
    const CUgraphNode node_;
};

// The queued change that `command` replaces; null if there is none.
QueuedChange* replaced_by(const GraphView& session, const GraphExec& graph, const Command& command, CUgraphNode node) {
    if (!session.graphs.changes_waiting.contains(node)) {
        return nullptr;
    }
    for (auto it = graph.queue.entries.rbegin(); it != graph.queue.entries.rend(); ++it) {
        auto* const change = dynamic_cast<QueuedChange*>(*it);
        if (change == nullptr || change->is_of_all()) {
            return nullptr;
        }
        if (change->is_replaced_by(command, node)) {
            return change;
        }
    }
    return nullptr;
}

}  // namespace

CUresult note_change(GraphView& session, const Command& command, CUgraphNode node, CUresult result) {
    if (result == CUDA_SUCCESS) {
        session.graphs.failed_changes.erase(node);
    } else if (!command.reply_wanted()) {
        session.graphs.failed_changes.try_emplace(node, result);
    }
    return result;
}
CUresult note_change(const Command& command, GraphExec& graph, CUresult result) {
    if (result != CUDA_SUCCESS && !command.reply_wanted() && graph.refused == CUDA_SUCCESS) {
        graph.refused = result;
    }
    return result;
}

void charge_stack_of(SessionView& session, CUcontext context, GraphExec& graph, std::function<void()> then) {
    const ContextState* const state = session.objects.context(context);
    std::size_t room_bytes = 0;
    if (state == nullptr || session.scheduler.enter(state) != CUDA_SUCCESS ||
        driver::call(session.api.cuCtxGetLimit, &room_bytes, CU_LIMIT_STACK_SIZE) != CUDA_SUCCESS) {
        then();
        return;
    }
    graph.memory.stack_bytes = room_bytes;
    if (session.memory.charge_limit(session.api, *state, CU_LIMIT_STACK_SIZE, room_bytes)) {
        then();
        return;
    }
    session.waiting_calls.run(
        [&api = session.api, driver = state->driver, counted = session.memory.driver.counted_stack(*state)] {
            in_context(api, driver, [&] { return driver::call(api.cuCtxSetLimit, CU_LIMIT_STACK_SIZE, counted); });
        },
        [&session, then = std::move(then)] { session.gate.when_open(then); });
}

void change_elsewhere(GraphView& session, const Command& command, std::function<CUresult()> change,
                      std::function<void(CUresult)> done) {
    const ContextState* const context = session.context_of(command);
    const auto result = std::make_shared<CUresult>(CUDA_SUCCESS);
    session.waiting_calls.run_alone(
        [&api = session.api, context = context == nullptr ? nullptr : context->driver, change = std::move(change),
         result] { *result = in_context(api, context, change); },
        [result, done = std::move(done)] { done(*result); });
}

std::optional<Outcome> await_launches(GraphView& session, const Command& command, CUgraphExec client,
                                      const std::shared_ptr<GraphExec>& graph, CUgraphNode node) {
    if (command.ready || graph->queue.empty()) {
        return std::nullopt;
    }
    if (QueuedChange* const former = replaced_by(session, *graph, command, node)) {
        former->replace(command);
    } else {
        graph->queue.name = codec::to_wire(client);
        session.gate.queue(graph->queue, std::make_unique<QueuedChange>(session, command, graph, node));
    }
    return Outcome::answered();
}

bool is_named(const GraphView& session, const GraphContents& contents) {
    const auto& waiting = session.graphs.changes_waiting;
    return !waiting.empty() && std::any_of(contents.nodes.begin(), contents.nodes.end(),
                                           [&](CUgraphNode node) { return waiting.contains(node); });
}

std::optional<Outcome> await_changes(GraphView& session, const Command& command, bool any) {
    if (command.ready || !any) {
        return std::nullopt;
    }
    return serve_after_all(session, command);
}

}  // namespace gpupool::worker
