#include "server/worker/graphs/graph_changes.h"

#include <algorithm>
#include <utility>

namespace gpupool::worker {
namespace {

// The numbers of waiting changes of one executable at which the client is throttled and released. On a local GPU, a
// thread that launches the executable so often would block by then, because the driver's queue is full of its nodes.
constexpr std::uint64_t kThrottleChangesAt = 4096, kReleaseChangesAt = 1024;

void set_throttled(Worker& worker, GraphExec& graph, std::uint64_t client, bool throttled) {
    graph.throttled = throttled;
    worker.notify(codec::NoticeType::throttle,
                  codec::StreamThrottleNotice{codec::kThrottledGraphChanges, client, 0, throttled ? 1u : 0u});
}

using WaitingChangePtr = std::shared_ptr<GraphExec::WaitingChange>;

// Makes a change that has nothing left to wait for, and the changes behind it that waited only for it, when the driver
// is not closed.
void make_changes(Worker& worker, const std::shared_ptr<GraphExec>& graph, std::uint64_t client,
                  WaitingChangePtr change) {
    while (change != nullptr) {
        if (worker.driver_closed()) {
            worker.when_driver_open([&worker, graph, client, change] { make_changes(worker, graph, client, change); });
            return;
        }
        ++graph->changes_made;
        const auto place = graph->replaceable.find({change->node, change->command.header.opcode});
        if (place != graph->replaceable.end() && place->second == change) {
            graph->replaceable.erase(place);
        }
        auto& waiting = worker.graphs.changes_waiting;
        waiting.erase(waiting.find(change->node));
        if (graph->throttled && graph->changes_asked - graph->changes_made <= kReleaseChangesAt) {
            set_throttled(worker, *graph, client, false);
        }
        Command command = std::move(change->command);
        worker.dispatch(command);
        change = std::move(change->next);
        if (change != nullptr && --change->waits_for != 0) {
            return;
        }
    }
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
    if (command.ready || (graph->held_launches.empty() && !graph->has_changes_waiting())) {
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
    if (!graph->throttled && graph->changes_asked - graph->changes_made >= kThrottleChangesAt) {
        set_throttled(worker, *graph, name, true);
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

bool is_named(const Worker& worker, const GraphContents& contents) {
    const auto& waiting = worker.graphs.changes_waiting;
    return !waiting.empty() && std::any_of(contents.nodes.begin(), contents.nodes.end(),
                                           [&](CUgraphNode node) { return waiting.contains(node); });
}

std::optional<Outcome> await_changes(Worker& worker, const Command& command, bool any) {
    if (command.ready || !any) {
        return std::nullopt;
    }
    serve_when_issued(worker, command);
    return Outcome::answered();
}

}  // namespace gpupool::worker
