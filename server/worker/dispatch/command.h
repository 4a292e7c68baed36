// A command as the dispatcher holds it.
//
// Ownership: a Command keeps the frame alive that it lies in; one that is held for later takes its body out of it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "protocol/calls/cuda_api.h"
#include "protocol/codec/record.h"

namespace gpupool::worker {

// What lives of frames is counted, so that a client which sends more than it was told to can be stopped.
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

// What a command that is kept costs besides its bytes, about: the operation, its place in queues, an event. A call that
// somebody waits for costs more, because there are no more of those than threads.
inline constexpr std::size_t kHeldCostBytes = 256;
inline constexpr std::size_t kHeldCopyCostBytes = 2u << 10;  // with its transfer
inline constexpr std::size_t kWaitingCostBytes = 16u << 10;

struct EventState;

// What the client calls a stream.
struct StreamName {
    CUcontext context = nullptr;
    CUstream stream = nullptr;  // null: the context's legacy stream; 2: a thread's own default stream
    std::uint32_t thread = 0;   // of that one

    bool operator==(const StreamName&) const = default;
};

struct Command {
    codec::CommandHeader header;
    std::span<std::byte> body;
    std::shared_ptr<Frame> frame;
    bool ready = false;                               // its stream has reached it: issue, do not ask again
    std::optional<StreamName> stream;                 // that it works in, or waits for, once that was looked up
    CUcontext waits_for = nullptr;                    // all of that context's work, which need not be the sender's
    std::vector<std::shared_ptr<EventState>> events;  // of one that is held: that it names, as they were when it came

    // For a command that is kept for later: out of the frame that it shares with others, which may then go.
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
    // The same where the arguments are not needed any more.
    void keep_header(std::size_t cost_bytes) {
        auto own = std::make_shared<Frame>();
        own->charge(frame == nullptr ? nullptr : frame->account, cost_bytes);
        body = {};
        frame = std::move(own);
    }

    [[nodiscard]] bool reply_wanted() const { return (header.flags & codec::kReplyWanted) != 0; }
    // The stream that a handle means: NULL is the legacy stream, or the thread's own.
    [[nodiscard]] CUstream meant(CUstream handle) const {
        return handle != nullptr ? handle : per_thread_default() ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
    }
    [[nodiscard]] bool per_thread_default() const { return (header.flags & codec::kPerThreadDefaultStream) != 0; }
};

}  // namespace gpupool::worker
