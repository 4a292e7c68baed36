// The session's contexts, streams and events as the worker knows them.
//
// Ownership: Objects owns them all.
// Threads: the dispatcher's alone.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "protocol/calls/cuda_api.h"
#include "protocol/codec/handles.h"
#include "server/driver/api.h"
#include "server/worker/dispatch/command.h"
#include "server/worker/gate/queue.h"
#include "server/worker/memory/pinned_memory.h"
#include "server/worker/transfers/staging.h"

namespace gpupool::worker {

struct ContextState;

// Runs when a mark is reached or an event complete, with the driver's result.
using Action = std::function<void(CUresult)>;

// What an action sends to the client. Data that the GPU has written goes before anything that reports work as complete;
// notifications of single events go before replies. `ours`: nothing.
enum class Effect { sends_data, notifies_of_event, answers, ours };

struct Completion {
    std::uint32_t mark = 0;   // its number, see MarkWord
    CUevent event = nullptr;  // before the mark if kernels may have printed, or in place of it; else null
    Action action;
    Effect effect = Effect::answers;
    std::uint32_t credit = 0;  // operations of the stream that are complete with it
    // An event in place of a mark: `mark` is the next mark's number, at which it is complete at the latest.
    bool by_event = false;
};

// A word of pinned memory. Behind a stream's work the GPU writes the number of the last mark that it has reached.
struct MarkWord {
    const std::uint32_t* word = nullptr;  // null: the stream was never marked
    CUdeviceptr device_word = 0;
    std::uint32_t last = 0;     // mark that was given to the driver
    std::uint64_t made_at = 0;  // ContextState::submissions when that mark was made

    // Numbers wrap around.
    [[nodiscard]] bool reached(std::uint32_t mark) const {
        return static_cast<std::int32_t>(__atomic_load_n(word, __ATOMIC_ACQUIRE) - mark) >= 0;
    }
    // Has the GPU write `number` to a stream's word after the work that was issued to the stream so far. Any thread,
    // with the stream's context current.
    static CUresult write(const driver::Api& api, CUstream stream, CUdeviceptr device_word, std::uint32_t number) {
        return driver::call(driver::OwnWork(), api.cuStreamWriteValue32_v2, stream, device_word, cuuint32_t{number},
                            static_cast<unsigned>(CU_STREAM_WRITE_VALUE_DEFAULT));
    }
};

// A word of pinned memory on which a stream waits for a host function, which runs in the client.
struct HostFunctionWord {
    std::uint32_t* word = nullptr;
    CUdeviceptr device_word = 0;
    const ContextState* context = nullptr;
};

// Words that streams wait for, by the client's ticket.
using HostFunctions = std::unordered_map<std::uint64_t, HostFunctionWord>;

// Keeps the first error among several results.
inline void keep_first_error(CUresult& kept, CUresult next) {
    kept = kept == CUDA_SUCCESS ? next : kept;
}

// The stream's name in records on the wire.
inline std::uint64_t on_wire(const StreamName& stream) {
    return codec::to_wire(stream.stream == nullptr ? CU_STREAM_LEGACY : stream.stream);
}

struct StreamState {
    CUstream client = nullptr;  // null: the context's legacy stream; 2: a thread's own default stream
    CUstream driver = nullptr;
    ContextState* context = nullptr;
    std::uint32_t thread = 0;  // of a thread's default stream
    bool legacy = false;
    bool blocking = true;            // synchronizes with the legacy stream
    bool capturing = false;          // no mark may enter it
    bool began_capture = false;      // it began a capture that has not ended
    bool captures_to_given = false;  // into a graph that existed before
    Queue queue;                     // of the gate
    std::deque<Completion> completions;
    MarkWord marks;
    std::uint32_t outstanding = 0;    // issued, not known to be complete
    std::uint32_t unmarked = 0;       // those of them that were issued since the last mark
    CUresult latched = CUDA_SUCCESS;  // first error of a deferred call, not yet reported
    bool touched = false;             // has had work since it was last found idle
    bool listed = false;              // in the scheduler's list of streams to poll
    bool ending = false;              // destroyed by the program: takes no new commands
    bool gone = false;                // destroyed in the driver
    Staging::StreamUsePtr staging;    // the staging memory that it uses
    int issuer = -1;                  // which issuer has its launches (issuers.h); 0: the dispatcher, -1: not decided

    [[nodiscard]] StreamName name() const;
    // Keeps the first error until take_latched(), which calls that synchronize with the stream make.
    void latch(CUresult result);
    CUresult take_latched();
};

// The program's event as of one record of it. If that record still matters when the event is recorded again
// (event_record.h), the new record gets a state and a driver's event of its own, and this one is retired.
struct EventState {
    CUevent client = nullptr;
    CUevent driver = nullptr;
    ContextState* context = nullptr;
    unsigned flags = 0;
    StreamName recorded_in;
    CUresult latched = CUDA_SUCCESS;  // the stream's latched error at the record: waiters report it too
    std::uint64_t queued_record = 0;  // the number of the queued entry that will record it, or 0
    std::uint32_t waiters = 0;        // entries of the scheduler's event_waits_ that wait for it
    std::uint32_t queued_uses = 0;    // queued entries that name it
    bool retired = false;             // the driver's event is destroyed when no queued entry names it
    bool in_graph = false;            // a graph names the driver's event, so it is not replaced
};

struct ContextState {
    CUcontext client = nullptr;
    CUcontext driver = nullptr;
    CUdevice device = 0;
    std::uint64_t number = 0;  // counts the session's contexts, from 1
    bool primary = false;
    // A green context, or null. Its streams are its own, and none of them is ordered behind its default stream. All
    // other objects that are made in it belong to its device's primary context.
    CUgreenCtx green = nullptr;
    ContextState* parent = nullptr;     // of a green context: the primary context, while that exists
    std::vector<ContextState*> greens;  // of a primary context
    bool ending = false;                // the program has requested its end
    CUresult lost = CUDA_SUCCESS;       // an error that may have ended it: only the driver knows what is complete
    CUresult latched = CUDA_SUCCESS;    // first unreported error of deferred calls that name no stream
    // The first unreported error of streams that have been destroyed. Waits for the legacy stream or the context report
    // it.
    CUresult latched_by_ended = CUDA_SUCCESS;
    std::size_t streams_latched = 0;  // streams with a latched error
    StreamState legacy;
    std::size_t unmarked_blocking = 0;  // blocking streams with work behind their last mark
    // A blocking stream of the worker's. A mark in it stands for the legacy stream without stalling other streams.
    CUstream helper = nullptr;
    std::unordered_map<CUstream, std::unique_ptr<StreamState>> streams;          // by client handle
    std::unordered_map<std::uint32_t, std::unique_ptr<StreamState>> per_thread;  // by client thread
    std::uint64_t submissions = 0;  // grows before and after any of its streams is given work
    std::vector<CUevent> spare_events;
    std::vector<PinnedMemory::BlockPtr> words;  // memory of the next two
    std::vector<MarkWord> spare_marks;          // words without a stream, with the numbers they have reached
    std::vector<HostFunctionWord> spare_words;

    // Streams of the contexts that share this one's memory: a primary context and its green ones.
    [[nodiscard]] std::size_t stream_count() const {
        const auto own = [](const ContextState& context) { return context.streams.size() + context.per_thread.size(); };
        std::size_t count = own(owner());
        for (const ContextState* const green : owner().greens) {
            count += own(*green);
        }
        return count;
    }
    // The context that objects made in this one belong to.
    [[nodiscard]] ContextState& owner() { return parent != nullptr ? *parent : *this; }
    [[nodiscard]] const ContextState& owner() const { return parent != nullptr ? *parent : *this; }
    // The result to notify the client of when work has ended with `result`. If an error is latched it is
    // CUDA_ERROR_NOT_READY, so that the client sends a query, whose reply reports the error.
    [[nodiscard]] CUresult result_to_notify(CUresult result) const {
        const bool any_latched = streams_latched != 0 || latched != CUDA_SUCCESS || latched_by_ended != CUDA_SUCCESS;
        return result == CUDA_SUCCESS && any_latched ? CUDA_ERROR_NOT_READY : result;
    }
    // Allocates more words, `apart_bytes` apart, of pinned memory that stays as long as the context, which must be
    // current. Calls `add` with each one's host and device address.
    template <class Add>
    CUresult add_words(const driver::Api& api, PinnedMemory& memory, std::size_t apart_bytes, Add add) {
        PinnedMemory::BlockPtr block;
        CUdeviceptr on_device = 0;
        CUresult result = memory.allocate(PinnedMemory::kLeastBytes, block);
        if (result == CUDA_SUCCESS) {
            result = driver::call(api.cuMemHostGetDevicePointer_v2, &on_device, static_cast<void*>(block->data()), 0u);
        }
        if (result != CUDA_SUCCESS) {
            return result;
        }
        for (std::size_t at = 0; at < block->bytes(); at += apart_bytes) {
            add(reinterpret_cast<std::uint32_t*>(block->data() + at), on_device + at);
        }
        words.push_back(std::move(block));
        return CUDA_SUCCESS;
    }
    template <class Visit>
    void each_stream(Visit&& visit) {
        visit(legacy);
        for (auto& [handle, stream] : streams) {
            visit(*stream);
        }
        for (auto& [thread, stream] : per_thread) {
            visit(*stream);
        }
    }
    // Is the condition true for any blocking stream or the legacy stream?
    template <class Is>
    bool any_blocking(Is&& is) {
        bool any = false;
        each_stream([&](const StreamState& stream) { any = any || (stream.blocking && is(stream)); });
        return any;
    }
};

inline StreamName StreamState::name() const {
    return {context->client, client, thread};
}

inline void StreamState::latch(CUresult result) {
    if (latched == CUDA_SUCCESS) {
        latched = result;
        ++context->streams_latched;
    }
}

inline CUresult StreamState::take_latched() {
    context->streams_latched -= latched == CUDA_SUCCESS ? 0 : 1;
    return std::exchange(latched, CUDA_SUCCESS);
}

struct Objects {
    // A context takes hundreds of megabytes of GPU memory, a stream a hardware channel; no program needs so many.
    static constexpr std::size_t kMaxContexts = 64;
    static constexpr std::size_t kMaxGreenContexts = 512;
    static constexpr std::size_t kMaxStreams = 16384;      // threads' default streams included
    static constexpr std::size_t kMaxEvents = 512u << 10;  // and as many watches of events

    std::unordered_map<CUcontext, std::unique_ptr<ContextState>> contexts;  // by client handle
    std::size_t contexts_in_making = 0;
    std::uint64_t contexts_made = 0;
    std::unordered_map<CUevent, std::shared_ptr<EventState>> events;  // by client handle; queued entries share them
    std::deque<std::function<void()>> limit_changes;                  // the first is under way
    std::set<CUdevice> primaries_in_making;
    std::size_t captures = 0;       // stream captures that have begun and not ended
    std::size_t event_watches = 0;  // watches that have not been reported

    ContextState* context(CUcontext client) {
        const auto it = contexts.find(client);
        return it == contexts.end() ? nullptr : it->second.get();
    }
    [[nodiscard]] ContextState* primary(CUdevice device) const {
        for (const auto& [handle, context] : contexts) {
            if (context->primary && context->device == device) {
                return context.get();
            }
        }
        return nullptr;
    }
    // May there be another context, green or not? Those in making count as either.
    [[nodiscard]] bool context_fits(bool green) const {
        std::size_t count = contexts_in_making;
        for (const auto& [handle, context] : contexts) {
            count += (context->green != nullptr) == green ? 1 : 0;
        }
        return count < (green ? kMaxGreenContexts : kMaxContexts);
    }
    EventState* event(CUevent client) {
        const auto it = events.find(client);
        return it == events.end() ? nullptr : it->second.get();
    }
    [[nodiscard]] std::size_t stream_count() const {
        std::size_t count = 0;
        for (const auto& [handle, context] : contexts) {
            count += context->streams.size() + context->per_thread.size();
        }
        return count;
    }
    // How many of them are destroyed as soon as their work is complete.
    [[nodiscard]] std::size_t ending_stream_count() const {
        std::size_t count = 0;
        for (const auto& [handle, context] : contexts) {
            for (const auto& [name, stream] : context->streams) {
                count += stream->ending ? 1 : 0;
            }
        }
        return count;
    }
    [[nodiscard]] bool stream_fits() const { return stream_count() < kMaxStreams; }
    std::size_t streams_destroyed = 0;  // since make_room() last polled for those that are complete
    StreamState* stream(const StreamName& name) {
        ContextState* const of = context(name.context);
        if (of == nullptr || name.stream == nullptr) {
            return of == nullptr ? nullptr : &of->legacy;
        }
        if (name.stream == CU_STREAM_PER_THREAD) {
            const auto own = of->per_thread.find(name.thread);
            return own == of->per_thread.end() ? nullptr : own->second.get();
        }
        const auto it = of->streams.find(name.stream);
        return it == of->streams.end() ? nullptr : it->second.get();
    }
    StreamState* stream(CUstream client) {
        for (auto& [handle, context] : contexts) {
            if (const auto it = context->streams.find(client); it != context->streams.end()) {
                return it->second.get();
            }
        }
        return nullptr;
    }
};

}  // namespace gpupool::worker
