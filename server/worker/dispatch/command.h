// A command as the dispatcher handles it.
//
// Ownership: a Command shares ownership of the frame that its body lies in. A command that is kept for later copies its
//   body out of the frame (keep_body()), so that the frame can be freed.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "protocol/calls/cuda_api.h"
#include "protocol/codec/reasons.h"
#include "protocol/codec/record.h"

namespace gpupool::worker {

// The bytes of a received frame. It counts itself on the worker's account while it exists, so that the worker can end
// the session of a client that sends more than it may.
struct Frame {
    Frame() = default;
    Frame(const Frame&) = delete;
    Frame& operator=(const Frame&) = delete;
    ~Frame() {
        if (account != nullptr) {
            account->fetch_sub(charged_bytes, std::memory_order_relaxed);
        }
    }
    void charge(std::atomic<std::size_t>* to, std::size_t cost_bytes) {
        account = to;
        charged_bytes = cost_bytes;
        if (account != nullptr) {
            account->fetch_add(charged_bytes, std::memory_order_relaxed);
        }
    }

    std::unique_ptr<std::byte[]> data;
    std::size_t bytes = 0;
    std::atomic<std::size_t>* account = nullptr;  // outlives the frame
    std::size_t charged_bytes = 0;
};

// Approximate cost of a kept command besides its bytes: its entry, its places in queues, an event. A command
// whose caller waits for the reply is charged more: the client has at most one of those for each of its threads.
inline constexpr std::size_t kQueuedCostBytes = 256;
inline constexpr std::size_t kQueuedCopyCostBytes = 2u << 10;  // with the state of its transfer or call
inline constexpr std::size_t kWaitingCostBytes = 16u << 10;

struct EventState;

// Names a stream as the client does.
struct StreamName {
    CUcontext context = nullptr;
    CUstream stream = nullptr;  // null: the context's legacy stream; 2: a thread's default stream
    std::uint32_t thread = 0;   // whose default stream

    bool operator==(const StreamName&) const = default;
};

struct Command {
    codec::CommandHeader header;
    std::span<std::byte> body;
    std::shared_ptr<Frame> frame;
    bool ready = false;  // set when the command is queued: when it leaves the queue it is not queued again
    codec::Reason waited_for = codec::Reason::none;  // last, if it was queued
    std::optional<StreamName> stream;                // the one that it works in or waits for, once looked up
    CUcontext waits_for = nullptr;  // it waits for all work of this context, which may differ from header.context
    // of a queued command: those that it names, as they were on arrival
    std::vector<std::shared_ptr<EventState>> events;

    // Copies the body out of the shared frame, which may then be freed. For a command that is kept for later.
    void keep_body(std::size_t cost_bytes) {
        auto own = std::make_shared<Frame>();
        own->bytes = body.size();
        own->data = std::make_unique<std::byte[]>(body.size());
        if (!body.empty()) {
            std::memcpy(own->data.get(), body.data(), body.size());
        }
        own->charge(frame == nullptr ? nullptr : frame->account, body.size() + cost_bytes);
        body = {own->data.get(), own->bytes};
        frame = std::move(own);
    }
    // Keeps the command's header alone: its arguments are not needed any more.
    void keep_header(std::size_t cost_bytes) {
        auto own = std::make_shared<Frame>();
        own->charge(frame == nullptr ? nullptr : frame->account, cost_bytes);
        body = {};
        frame = std::move(own);
    }

    [[nodiscard]] bool reply_wanted() const { return (header.flags & codec::kReplyWanted) != 0; }
    // Resolves NULL to the legacy stream or to the thread's default stream, as the command's flags say.
    [[nodiscard]] CUstream meant(CUstream handle) const {
        return handle != nullptr ? handle : per_thread_default() ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
    }
    [[nodiscard]] bool per_thread_default() const { return (header.flags & codec::kPerThreadDefaultStream) != 0; }
};

}  // namespace gpupool::worker
