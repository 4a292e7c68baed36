// What the worker knows of a session's contexts, streams and events.
//
// Ownership: Objects owns them all. Threads: the dispatcher's alone.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "protocol/calls/cuda_api.h"
#include "protocol/codec/handles.h"
#include "server/driver/api.h"
#include "server/worker/dispatch/command.h"
#include "server/worker/memory/pinned_memory.h"
#include "server/worker/transfers/staging.h"

namespace gpupool::worker {

class Operation;
struct ContextState;

// Runs when a mark was reached or an event is complete; the result is the driver's word on it.
using Action = std::function<void(CUresult)>;

// What an action does for the client. Data that the GPU has written goes before whatever says that work is complete,
// and what the client wants to know of single events before whatever it waited for.
// `ours`: nothing.
enum class Effect { sends_data, tells_of_event, answers, ours };

struct Completion {
    std::uint32_t mark = 0;   // its number, see MarkWord
    CUevent event = nullptr;  // before the mark, where kernels may have printed, or in place of it; otherwise null
    Action action;
    Effect effect = Effect::answers;
    std::uint32_t credit = 0;  // launches and copies of the stream that are done with it
    bool by_event = false;     // `mark` is the next one's: this is reached when its event is complete, or by then
};

// A word of pinned memory that the GPU writes behind a stream's work: the number of our last mark that it came to.
struct MarkWord {
    const std::uint32_t* word = nullptr;  // null: the stream was never marked
    CUdeviceptr device_word = 0;
    std::uint32_t last = 0;     // mark that was given to the driver
    std::uint64_t made_at = 0;  // that one: ContextState::submissions at the time

    // Numbers wrap around.
    [[nodiscard]] bool reached(std::uint32_t mark) const {
        return static_cast<std::int32_t>(__atomic_load_n(word, __ATOMIC_ACQUIRE) - mark) >= 0;
    }
};

// Has the GPU write `number` to a stream's word behind what `stream` was given. Any thread, in the stream's context.
inline CUresult write_mark(const driver::Api& api, CUstream stream, CUdeviceptr device_word, std::uint32_t number) {
    return driver::call(api.cuStreamWriteValue32_v2, stream, device_word, cuuint32_t{number},
                        static_cast<unsigned>(CU_STREAM_WRITE_VALUE_DEFAULT));
}

// A word of pinned memory on which a stream waits for a host function, which runs in the client.
struct HostFunctionWord {
    std::uint32_t* word = nullptr;
    CUdeviceptr device_word = 0;
    const ContextState* context = nullptr;
};

// Of several results the first that is an error.
inline void keep_first_error(CUresult& kept, CUresult next) {
    kept = kept == CUDA_SUCCESS ? next : kept;
}

// How records name it.
inline std::uint64_t on_wire(const StreamName& stream) {
    return codec::to_wire(stream.stream == nullptr ? CU_STREAM_LEGACY : stream.stream);
}

struct StreamState {
    CUstream client = nullptr;  // null: the context's legacy stream; 2: a thread's own default stream
    CUstream driver = nullptr;
    ContextState* context = nullptr;
    std::uint32_t thread = 0;  // of a thread's own default stream
    bool legacy = false;
    bool blocking = true;            // synchronizes with the legacy stream
    bool capturing = false;          // no mark of ours may enter it
    bool began_capture = false;      // and that capture has not ended
    bool captures_to_given = false;  // to a graph that was there before
    std::deque<std::unique_ptr<Operation>> held;
    std::size_t held_bytes = 0;  // what `held` costs
    std::deque<Completion> completions;
    MarkWord marks;
    std::uint32_t outstanding = 0;    // issued, not known to be complete
    std::uint32_t unmarked = 0;       // of these, issued since our last mark
    CUresult latched = CUDA_SUCCESS;  // the first failure of a deferred call in it that nobody was told of
    bool touched = false;             // has had work since the last synchronization found it idle
    bool client_held = false;         // the client was told to send no more for it
    bool listed = false;              // in the scheduler's list of busy streams
    bool ending = false;              // destroyed: nothing new for it
    bool gone = false;                // the driver has it no more
    Staging::SharePtr staging;        // what it holds of the staging memory
    int issuer = -1;                  // who issues its mixed launches (issuers.h); 0: the dispatcher, -1: not decided

    [[nodiscard]] StreamName name() const;
    // Remembers the failure for take_latched(), which is whoever waits for the stream.
    void latch(CUresult result);
    CUresult take_latched();
};

// The application's event as of one record of it. Where that still matters to somebody when the event is recorded again
// (event_record.h), the new record gets a state and a driver's event of its own, and this one is retired.
struct EventState {
    CUevent client = nullptr;
    CUevent driver = nullptr;
    ContextState* context = nullptr;
    unsigned flags = 0;
    StreamName recorded_in;
    CUresult latched = CUDA_SUCCESS;  // what nobody had been told of in that stream then: who waits for this is to know
    std::uint64_t held_record = 0;    // the operation that will record it, while that is held
    std::uint32_t waiters = 0;        // that wait for the record
    std::uint32_t held_uses = 0;      // held operations that name it
    bool retired = false;             // the driver's event goes when nothing that is held names it
    bool in_graph = false;            // a graph names the driver's event: it stays that one
};

struct ContextState {
    CUcontext client = nullptr;
    CUcontext driver = nullptr;
    CUdevice device = 0;
    std::uint64_t number = 0;  // of all that the session has had, from 1
    bool primary = false;
    bool ending = false;              // its end was asked for
    CUresult lost = CUDA_SUCCESS;     // the error that ended it, perhaps: only the driver can tell what is complete
    CUresult latched = CUDA_SUCCESS;  // as a stream's, of calls that name none
    CUresult latched_by_ended =
        CUDA_SUCCESS;                 // as a stream's, of streams that have ended: only who waits for all is told
    std::size_t streams_latched = 0;  // that have such a failure
    StreamState legacy;
    std::size_t unmarked_blocking = 0;  // blocking streams that were given work behind their last mark
    CUstream helper = nullptr;  // blocking, ours: a mark on it stands for the legacy stream without stalling others
    std::unordered_map<CUstream, std::unique_ptr<StreamState>> streams;          // by client handle
    std::unordered_map<std::uint32_t, std::unique_ptr<StreamState>> per_thread;  // by client thread
    std::uint64_t submissions = 0;  // grows before and after streams of it are given work
    std::vector<CUevent> spare_events;
    std::vector<PinnedMemory::BlockPtr> words;  // of the next two
    std::vector<MarkWord> spare_marks;          // words without a stream, with the numbers that they came to
    std::vector<HostFunctionWord> spare_words;

    // What is told, unasked, of work that has ended so: where there is a failure that nobody was told of, that it is
    // not ready, so that the client asks, and hears of that.
    [[nodiscard]] CUresult told(CUresult result) const {
        const bool any_latched = streams_latched != 0 || latched != CUDA_SUCCESS || latched_by_ended != CUDA_SUCCESS;
        return result == CUDA_SUCCESS && any_latched ? CUDA_ERROR_NOT_READY : result;
    }
    // More words, `apart_bytes` each, of pinned memory that stays as long as the context, which is current: `add` is
    // given each one's address here and on the device.
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
    // Is any that the legacy stream waits for so, or that one itself?
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
    // A context takes hundreds of megabytes of a GPU, a stream a channel; no program needs as many.
    static constexpr std::size_t kMaxContexts = 64;
    static constexpr std::size_t kMaxStreams = 16384;      // with the threads' own
    static constexpr std::size_t kMaxEvents = 512u << 10;  // and as many watches of them

    std::unordered_map<CUcontext, std::unique_ptr<ContextState>> contexts;  // by client handle
    std::size_t contexts_in_making = 0;
    std::uint64_t contexts_made = 0;
    std::unordered_map<CUevent, std::shared_ptr<EventState>> events;  // by client handle; what is held shares them
    std::size_t event_watches = 0;                                    // that nobody was told of

    ContextState* context(CUcontext client) {
        const auto it = contexts.find(client);
        return it == contexts.end() ? nullptr : it->second.get();
    }
    [[nodiscard]] bool has_primary(CUdevice device) const {
        for (const auto& [handle, context] : contexts) {
            if (context->primary && context->device == device) {
                return true;
            }
        }
        return false;
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
    // Of these, how many go when their work is complete.
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
    std::size_t streams_destroyed = 0;  // since it was looked for those that may go
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
