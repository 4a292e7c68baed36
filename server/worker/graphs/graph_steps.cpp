#include "server/worker/graphs/graph_steps.h"

#include <algorithm>

namespace gpupool::worker {
namespace {

constexpr unsigned kPiecesFlying = 8;

std::size_t piece_at(const ClientStep& step) {
    return static_cast<std::size_t>(
        std::min<std::uint64_t>(codec::kGraphPieceBytes, step.current->bytes - step.offset));
}

}  // namespace

void GraphSteps::begin(const std::shared_ptr<ClientSteps>& steps) {
    if (steps->running++ == 0 && std::find(running_.begin(), running_.end(), steps) == running_.end()) {
        running_.push_back(steps);
    }
    for (const std::unique_ptr<ClientStep>& step : steps->list) {
        if (!step->any_number) {
            step->launched.push_back(step->enabled ? step->work : nullptr);
        }
    }
}

void GraphSteps::end(const std::shared_ptr<ClientSteps>& steps) {
    if (--steps->running != 0) {
        return;
    }
    std::erase_if(functions_, [&](const auto& entry) {
        return std::any_of(steps->list.begin(), steps->list.end(),
                           [&](const auto& step) { return step.get() == entry.second; });
    });
    for (const std::unique_ptr<ClientStep>& step : steps->list) {
        step->launched.clear();
        step->busy = step->busy && step->kind != ClientStep::Kind::function && !step->confirming;
        step->confirming = false;
        // A launch that failed may have left them set.
        __atomic_store_n(step->request, 0u, __ATOMIC_RELAXED);
        __atomic_store_n(step->done, 0u, __ATOMIC_RELAXED);
    }
}

void GraphSteps::cancel(const std::shared_ptr<ClientSteps>& steps) {
    for (const std::unique_ptr<ClientStep>& step : steps->list) {
        if (!step->launched.empty()) {
            step->launched.pop_back();
        }
    }
    end(steps);
}

bool GraphSteps::poll() {
    bool moved = false;
    std::erase_if(running_, [&](const std::shared_ptr<ClientSteps>& steps) {
        bool busy = steps->running != 0;
        for (const std::unique_ptr<ClientStep>& step : steps->list) {
            moved = poll(*step, steps->running != 0) || moved;
            busy = busy || step->busy;
        }
        return !busy;
    });
    return moved;
}

bool GraphSteps::poll(ClientStep& step, bool running) {
    if (step.busy) {
        const bool moved = go_on(step);
        if (moved && !running) {
            __atomic_store_n(step.done, 0u, __ATOMIC_RELAXED);  // no launch waits for it any more
        }
        return moved;
    }
    if (!running || __atomic_load_n(step.request, __ATOMIC_ACQUIRE) == 0 ||
        (step.kind == ClientStep::Kind::from_client && !traffic_.may_go(HostTraffic::Way::in))) {
        return false;
    }
    __atomic_store_n(step.request, 0u, __ATOMIC_RELAXED);
    start(step);
    return true;
}

void GraphSteps::start(ClientStep& step) {
    step.current = step.any_number && step.enabled ? step.work : nullptr;
    if (!step.launched.empty()) {
        step.current = std::move(step.launched.front());
        step.launched.pop_front();
    }
    if (step.current == nullptr) {
        finish(step);
        return;
    }
    const StepWork& work = *step.current;
    codec::GraphCopyNotice rows = work.rows;
    step.busy = true;
    step.offset = 0;
    step.ticket = codec::kTransferOfWorker | next_ticket_++;
    rows.transfer = step.ticket;
    step.flying = std::make_shared<std::atomic<unsigned>>(0);
    switch (step.kind) {
        case ClientStep::Kind::function:
            functions_[step.ticket] = &step;
            answers_.send_host_changes();
            answers_.notify(codec::NoticeType::graph_function, codec::GraphFunctionNotice{step.ticket, work.function});
            return;
        case ClientStep::Kind::from_client:
            traffic_.count(HostTraffic::Way::in, work.bytes);
            incoming_.begin(step.ticket);
            for (; step.offset < work.bytes; step.offset += piece_at(step)) {
                incoming_.expect(step.ticket, step.offset, piece_at(step), work.staging->data() + step.offset);
                ++*step.flying;
            }
            answers_.notify(codec::NoticeType::graph_upload, rows);
            return;
        case ClientStep::Kind::to_client: answers_.notify(codec::NoticeType::graph_download, rows); return;
    }
}

bool GraphSteps::go_on(ClientStep& step) {
    switch (step.kind) {
        case ClientStep::Kind::function: return false;
        case ClientStep::Kind::from_client:
            while (incoming_.take_landed(step.ticket)) {
                --*step.flying;
            }
            if (*step.flying != 0) {
                return false;
            }
            incoming_.forget(step.ticket);
            break;
        case ClientStep::Kind::to_client:
            if (step.confirming) {
                return false;
            }
            while (step.offset < step.current->bytes && *step.flying < kPiecesFlying &&
                   traffic_.may_go(HostTraffic::Way::out)) {
                const std::size_t bytes = piece_at(step);
                traffic_.count(HostTraffic::Way::out, bytes);
                ++*step.flying;
                answers_.send_own(step.ticket, step.offset, {step.current->staging->data() + step.offset, bytes},
                                  [flying = step.flying, &inbox = inbox_] {
                                      --*flying;
                                      inbox.wake();
                                  });
                step.offset += bytes;
            }
            // The channel sends from the staging memory, so that must not be reused until all pieces have been sent.
            if (step.offset < step.current->bytes || *step.flying != 0) {
                return false;
            }
            // The GPU may read the client's shared memory next: waits until the client has written the data there.
            if (host_mirrors_.any_shared()) {
                step.confirming = true;
                functions_[step.ticket] = &step;
                answers_.notify(codec::NoticeType::graph_function, codec::GraphFunctionNotice{step.ticket, 0});
                return true;
            }
            break;
    }
    finish(step);
    return true;
}

void GraphSteps::finish(ClientStep& step) {
    step.busy = step.confirming = false;
    __atomic_store_n(step.done, 1u, __ATOMIC_RELEASE);
}

bool GraphSteps::function_done(std::uint64_t ticket) {
    const auto it = functions_.find(ticket);
    if (it == functions_.end()) {
        return false;
    }
    ClientStep& step = *it->second;
    functions_.erase(it);
    finish(step);
    return true;
}

}  // namespace gpupool::worker
