#include "server/worker/graphs/graph_turns.h"

#include <algorithm>

#include "server/worker/dispatch/worker.h"

namespace gpupool::worker {
namespace {

constexpr unsigned kPiecesFlying = 8;

std::size_t piece_at(const HostTurn& turn) {
    return static_cast<std::size_t>(
        std::min<std::uint64_t>(codec::kGraphPieceBytes, turn.current->bytes - turn.offset));
}

}  // namespace

void GraphTurns::begin(const std::shared_ptr<HostTurns>& turns) {
    if (turns->running++ == 0 && std::find(running_.begin(), running_.end(), turns) == running_.end()) {
        running_.push_back(turns);
    }
    for (const std::unique_ptr<HostTurn>& turn : turns->list) {
        turn->launched.push_back(turn->enabled ? turn->work : nullptr);
    }
}

void GraphTurns::end(const std::shared_ptr<HostTurns>& turns) {
    if (--turns->running != 0) {
        return;
    }
    std::erase_if(functions_, [&](const auto& entry) {
        return std::any_of(turns->list.begin(), turns->list.end(),
                           [&](const auto& turn) { return turn.get() == entry.second; });
    });
    for (const std::unique_ptr<HostTurn>& turn : turns->list) {
        turn->launched.clear();
        turn->busy = turn->busy && turn->kind != HostTurn::Kind::function && !turn->confirming;
        turn->confirming = false;
        // A launch that failed may have left them as they were.
        __atomic_store_n(turn->request, 0u, __ATOMIC_RELAXED);
        __atomic_store_n(turn->done, 0u, __ATOMIC_RELAXED);
    }
}

void GraphTurns::cancel(const std::shared_ptr<HostTurns>& turns) {
    for (const std::unique_ptr<HostTurn>& turn : turns->list) {
        if (!turn->launched.empty()) {
            turn->launched.pop_back();
        }
    }
    end(turns);
}

bool GraphTurns::poll() {
    bool moved = false;
    std::erase_if(running_, [&](const std::shared_ptr<HostTurns>& turns) {
        bool busy = turns->running != 0;
        for (const std::unique_ptr<HostTurn>& turn : turns->list) {
            moved = poll(*turn, turns->running != 0) || moved;
            busy = busy || turn->busy;
        }
        return !busy;
    });
    return moved;
}

bool GraphTurns::poll(HostTurn& turn, bool running) {
    if (turn.busy) {
        const bool moved = go_on(turn);
        if (moved && !running) {
            __atomic_store_n(turn.done, 0u, __ATOMIC_RELAXED);  // nobody waits for it
        }
        return moved;
    }
    if (!running || __atomic_load_n(turn.request, __ATOMIC_ACQUIRE) == 0) {
        return false;
    }
    __atomic_store_n(turn.request, 0u, __ATOMIC_RELAXED);
    start(turn);
    return true;
}

void GraphTurns::start(HostTurn& turn) {
    turn.current = nullptr;
    if (!turn.launched.empty()) {
        turn.current = std::move(turn.launched.front());
        turn.launched.pop_front();
    }
    if (turn.current == nullptr) {
        finish(turn);
        return;
    }
    const TurnWork& work = *turn.current;
    codec::GraphCopyNotice rows = work.rows;
    turn.busy = true;
    turn.offset = 0;
    turn.ticket = codec::kTransferOfWorker | next_ticket_++;
    rows.transfer = turn.ticket;
    turn.flying = std::make_shared<std::atomic<unsigned>>(0);
    switch (turn.kind) {
        case HostTurn::Kind::function:
            functions_[turn.ticket] = &turn;
            worker_.send_host_changes();
            worker_.notify(codec::NoticeType::graph_function, codec::GraphFunctionNotice{turn.ticket, work.function});
            return;
        case HostTurn::Kind::from_client:
            worker_.incoming.begin(turn.ticket);
            for (; turn.offset < work.bytes; turn.offset += piece_at(turn)) {
                worker_.incoming.expect(turn.ticket, turn.offset, piece_at(turn), work.staging->data() + turn.offset);
                ++*turn.flying;
            }
            worker_.notify(codec::NoticeType::graph_upload, rows);
            return;
        case HostTurn::Kind::to_client: worker_.notify(codec::NoticeType::graph_download, rows); return;
    }
}

bool GraphTurns::go_on(HostTurn& turn) {
    switch (turn.kind) {
        case HostTurn::Kind::function: return false;
        case HostTurn::Kind::from_client:
            while (worker_.incoming.take_landed(turn.ticket)) {
                --*turn.flying;
            }
            if (*turn.flying != 0) {
                return false;
            }
            worker_.incoming.forget(turn.ticket);
            break;
        case HostTurn::Kind::to_client:
            if (turn.confirming) {
                return false;
            }
            while (turn.offset < turn.current->bytes && *turn.flying < kPiecesFlying) {
                const std::size_t bytes = piece_at(turn);
                ++*turn.flying;
                const Status sent = worker_.channel().append_bulk(turn.ticket, turn.offset,
                                                                  {turn.current->staging->data() + turn.offset, bytes},
                                                                  [flying = turn.flying, &inbox = worker_.inbox] {
                                                                      --*flying;
                                                                      inbox.poke();
                                                                  });
                if (!sent) {
                    worker_.stop(sent.error().message);
                    return false;
                }
                turn.offset += bytes;
            }
            // Until it is acknowledged the memory must stay as it is: a broken line would send it again.
            if (turn.offset < turn.current->bytes || *turn.flying != 0) {
                return false;
            }
            if (worker_.host_mirrors.any_shared()) {  // the GPU may look at it next, where the client puts it
                turn.confirming = true;
                functions_[turn.ticket] = &turn;
                worker_.notify(codec::NoticeType::graph_function, codec::GraphFunctionNotice{turn.ticket, 0});
                return true;
            }
            break;
    }
    finish(turn);
    return true;
}

void GraphTurns::finish(HostTurn& turn) {
    turn.busy = turn.confirming = false;
    __atomic_store_n(turn.done, 1u, __ATOMIC_RELEASE);
}

bool GraphTurns::function_done(std::uint64_t ticket) {
    const auto it = functions_.find(ticket);
    if (it == functions_.end()) {
        return false;
    }
    HostTurn& turn = *it->second;
    functions_.erase(it);
    finish(turn);
    return true;
}

}  // namespace gpupool::worker
