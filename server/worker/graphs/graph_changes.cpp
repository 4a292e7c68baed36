#include "server/worker/graphs/graph_changes.h"

#include <algorithm>
#include <utility>

namespace gpupool::worker {
namespace {

// A change that waits for the launches before it.
class QueuedChange final : public QueuedCommand {
  public:
    QueuedChange(Worker& worker, const Command& command, std::shared_ptr<GraphExec> graph, CUgraphNode node)
        : QueuedCommand(worker, command), graph_(std::move(graph)), node_(node) {
        ++graph_->changes_queued;
        worker.graphs.changes_waiting.insert(node);
    }
    ~QueuedChange() override {
        --graph_->changes_queued;
        auto& waiting = worker_.graphs.changes_waiting;
        waiting.erase(waiting.find(node_));
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
    const std::shared_ptr<GraphExec> graph_;
    const CUgraphNode node_;
};

// The queued change that `command` replaces; null if there is none.
QueuedChange* replaced_by(const Worker& worker, const GraphExec& graph, const Command& command, CUgraphNode node) {
    if (!worker.graphs.changes_waiting.contains(node)) {
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

CUresult note_change(Worker& worker, const Command& command, CUgraphNode node, CUresult result) {
    if (result == CUDA_SUCCESS) {
        worker.graphs.failed_changes.erase(node);
    } else if (!command.reply_wanted()) {
        worker.graphs.failed_changes.try_emplace(node, result);
    }
    return result;
}
CUresult note_change(const Command& command, GraphExec& graph, CUresult result) {
    if (result != CUDA_SUCCESS && !command.reply_wanted() && graph.refused == CUDA_SUCCESS) {
        graph.refused = result;
    }
    return result;
}

void change_elsewhere(Worker& worker, const Command& command, std::function<CUresult()> change,
                      std::function<void(CUresult)> done) {
    const ContextState* const context = worker.context_of(command);
    const auto result = std::make_shared<CUresult>(CUDA_SUCCESS);
    worker.waiting_calls.run_alone([&api = worker.api, context = context == nullptr ? nullptr : context->driver,
                                    change = std::move(change), result] { *result = in_context(api, context, change); },
                                   [result, done = std::move(done)] { done(*result); });
}

std::optional<Outcome> await_launches(Worker& worker, const Command& command, CUgraphExec client,
                                      const std::shared_ptr<GraphExec>& graph, CUgraphNode node) {
    if (command.ready || graph->queue.empty()) {
        return std::nullopt;
    }
    if (QueuedChange* const former = replaced_by(worker, *graph, command, node)) {
        former->replace(command);
    } else {
        graph->queue.name = codec::to_wire(client);
        worker.gate.queue(graph->queue, std::make_unique<QueuedChange>(worker, command, graph, node));
    }
    return Outcome::answered();
}

bool is_named(const Worker& worker, const GraphContents& contents) {
    const auto& waiting = worker.graphs.changes_waiting;
    return !waiting.empty() && std::any_of(contents.nodes.begin(), contents.nodes.end(),
                                           [&](CUgraphNode node) { return waiting.contains(node); });
}

std::optional<Outcome> await_changes(Worker& worker, const Command& command, bool any) {
    if (command.ready || !any) {
        return std::nullopt;
    }
    return serve_after_all(worker, command);
}

}  // namespace gpupool::worker
