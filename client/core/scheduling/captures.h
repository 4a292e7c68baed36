// Which streams capture, for whom, and what that forbids.
//
// The worker captures in relaxed mode, so that its own work is never in the way; the modes that the application asked
// for are kept here. What the driver would invalidate a capture for is found here where the driver of the worker would
// not see it; what only that driver can find (a stream that was not joined, two captures merged) it says at the end.
//
// Threads: any. Errors: the driver's codes. While nothing captures, a check is one relaxed load.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/mutex.h"
#include "protocol/calls/cuda_api.h"

namespace gpupool::client {

struct ContextState;
struct ThreadState;

// A stream wherever it is named: by its handle, or, for a default stream, by context and thread.
using StreamKey = std::pair<std::uint64_t, std::uint64_t>;

// `stream` as the calling thread means it in its current context.
StreamKey stream_key(CUstream stream);
// The same from what the worker says of a stream: its handle, or 1 (legacy) or 2 (a thread's own).
StreamKey stream_key(std::uint64_t stream, std::uint64_t context_id, std::uint32_t thread);
// Is that a default stream, which only its context tells from others?
bool is_default_stream(std::uint64_t stream);
bool is_legacy(const StreamKey& key);

class Captures {
  public:
    struct Status {
        std::uint64_t id = 0;
        bool invalid = false;
    };

    [[nodiscard]] bool any() const { return active_.load(std::memory_order_relaxed) != 0; }
    // Has any event been recorded by a capture, be it over or not?
    [[nodiscard]] bool any_events() const { return captured_events_.load(std::memory_order_relaxed) != 0; }

    // ---- a capture's life. `blocking`: the stream synchronizes with the legacy stream.
    void begin(const StreamKey& stream, bool blocking, const ContextState* context, CUstreamCaptureMode mode);
    // Its streams capture no more. False when the stream does not capture.
    bool end(const StreamKey& stream);
    void join(const StreamKey& stream, bool blocking, std::uint64_t id);
    // The stream is gone: a capture ends with the stream that began it, and loses one that joined.
    void destroyed(const StreamKey& stream);
    // The context has ended, and its streams with it: what was captured there ends.
    void ended(const ContextState& context);
    [[nodiscard]] std::optional<Status> find(const StreamKey& stream) const;
    // May the calling thread end it?
    [[nodiscard]] bool ends_here(const StreamKey& stream) const;
    void invalidate(const StreamKey& stream);

    // ---- what is forbidden meanwhile
    // Work for a stream: into an invalid capture, or implicitly after what a stream captures.
    CUresult before_work(const StreamKey& stream, const ContextState* context);
    // A call that is no part of a capture and might wait for one, by the thread's and the captures' modes.
    CUresult before_unsafe_call();
    // A call that no capturing stream permits.
    CUresult refuse_if_capturing(const StreamKey& stream);
    CUresult before_context_wait(const ContextState* context);

    // ---- events
    void recorded(CUevent event, const StreamKey& stream);
    void forget(CUevent event);
    // The capture that recorded it last; its id even when it is over.
    [[nodiscard]] std::optional<std::uint64_t> capture_of(CUevent event) const;
    [[nodiscard]] bool active(std::uint64_t id) const;
    // A question for an event that a capture recorded last: it invalidates the capture, if that is still good.
    CUresult refuse_if_captured(CUevent event);

    // Where cuStreamGetCaptureInfo's dependencies lie until the next call for the stream.
    struct Dependencies {
        std::vector<CUgraphNode> nodes;
        std::vector<CUgraphEdgeData> edges;
    };
    Dependencies* dependencies_of(const StreamKey& stream);

  private:
    struct Capture {
        std::uint64_t id = 0;
        StreamKey first;  // the stream that began it
        const ContextState* context = nullptr;
        std::uint32_t owner = 0;  // the thread that began it
        CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
        bool invalid = false;
        bool blocking = false;  // one of its streams is
        std::set<StreamKey> streams;
        std::map<StreamKey, Dependencies> dependencies;
    };
    Capture* of_stream(const StreamKey& stream) const GP_REQUIRES(mutex_);
    void end_locked(const Capture& capture) GP_REQUIRES(mutex_);
    void leave(Capture& capture, const StreamKey& stream) GP_REQUIRES(mutex_);  // with the mutex held

    mutable Mutex mutex_;
    std::uint64_t next_id_ GP_GUARDED_BY(mutex_) = 1;
    std::map<std::uint64_t, std::unique_ptr<Capture>> captures_ GP_GUARDED_BY(mutex_);
    std::map<StreamKey, Capture*> by_stream_ GP_GUARDED_BY(mutex_);
    std::unordered_map<CUevent, std::uint64_t> events_ GP_GUARDED_BY(mutex_);
    std::atomic<std::size_t> active_{0}, captured_events_{0};
};

}  // namespace gpupool::client
