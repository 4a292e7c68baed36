// The stream captures under way, and the calls that they forbid.
//
// The worker captures in relaxed mode, so that a capture never forbids the worker's own calls. The client keeps the
// mode that the application asked for. It invalidates captures where the worker's driver, in relaxed mode, would not.
// The driver reports the errors that only it can detect (a stream that was not joined, two merged captures) at the end
// of the capture.
//
// Ownership: owns the captures; contexts are the session's.
// Threads: any. While nothing captures, a check is one relaxed load.
// Errors: the driver's.
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

// Identifies a stream: by its handle, or, if it is a default stream, by context and thread.
using StreamKey = std::pair<std::uint64_t, std::uint64_t>;

// The key of `stream` as the calling thread means it in its current context.
StreamKey stream_key(CUstream stream);
// The key of a stream that the worker names: by its handle, or 1 (legacy) or 2 (per-thread default).
StreamKey stream_key(std::uint64_t stream, std::uint64_t context_id, std::uint32_t thread);
// Is it a default stream, whose key depends on the context?
bool is_default_stream(std::uint64_t stream);
bool is_legacy(const StreamKey& key);

class Captures {
  public:
    struct Status {
        std::uint64_t id = 0;
        bool invalid = false;
        bool into_graph = false;
        CUgraph graph = nullptr;  // null if the program has not asked for it
    };

    [[nodiscard]] bool any() const { return active_.load(std::memory_order_relaxed) != 0; }
    // Has a capture, ended or not, recorded any event?
    [[nodiscard]] bool any_events() const { return captured_events_.load(std::memory_order_relaxed) != 0; }

    // ---- the life of a capture. `blocking`: the stream synchronizes with the legacy stream. `into_graph`: into a
    // graph that exists.
    void begin(const StreamKey& stream, bool blocking, const ContextState* context, CUstreamCaptureMode mode,
               bool into_graph = false);
    // Ends the capture that `stream` belongs to. False if the stream does not capture.
    bool end(const StreamKey& stream);
    void join(const StreamKey& stream, bool blocking, std::uint64_t id);
    // The stream was destroyed. If it began the capture, the capture ends; otherwise it leaves the capture.
    void destroyed(const StreamKey& stream);
    // The context has ended with its streams: its captures end.
    void ended(const ContextState& context);
    [[nodiscard]] std::optional<Status> find(const StreamKey& stream) const;
    // May the calling thread end the capture?
    [[nodiscard]] bool may_end(const StreamKey& stream) const;
    void invalidate(const StreamKey& stream);
    void invalidate(std::uint64_t id);
    // Did `stream` begin the capture that it belongs to?
    [[nodiscard]] bool began(const StreamKey& stream) const;
    // The program has asked for the graph that is being captured.
    void note_graph(const StreamKey& stream, CUgraph graph);

    // ---- checks. Each returns success if the call is allowed; otherwise it returns the error and invalidates the
    // captures concerned.
    // Work for a stream: refused for an invalid capture, and for the legacy stream if a blocking stream of the context
    // captures.
    CUresult before_work(const StreamKey& stream, const ContextState* context);
    // A call that captures may not contain and that might wait for captured work. Depends on the modes of the thread
    // and of the captures.
    CUresult before_unsafe_call();
    // A call that is never allowed on a capturing stream.
    CUresult refuse_if_capturing(const StreamKey& stream);
    CUresult before_context_wait(const ContextState* context);

    // ---- events
    void recorded(CUevent event, const StreamKey& stream);
    void forget(CUevent event);
    // The id of the capture that recorded the event last, even if that capture has ended.
    [[nodiscard]] std::optional<std::uint64_t> capture_of(CUevent event) const;
    [[nodiscard]] bool active(std::uint64_t id) const;
    // A query or a wait for an event. Refused if a capture recorded it last.
    CUresult refuse_if_captured(CUevent event);

    // The arrays that cuStreamGetCaptureInfo returns. They stay valid until the next such call for the stream.
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
        bool into_graph = false;
        bool blocking = false;  // one of its streams is blocking
        CUgraph graph = nullptr;
        std::set<StreamKey> streams;
        std::map<StreamKey, Dependencies> dependencies;
    };
    Capture* of_stream(const StreamKey& stream) const GP_REQUIRES(mutex_);
    void end_locked(const Capture& capture) GP_REQUIRES(mutex_);
    void leave(Capture& capture, const StreamKey& stream) GP_REQUIRES(mutex_);

    mutable Mutex mutex_;
    std::uint64_t next_id_ GP_GUARDED_BY(mutex_) = 1;
    std::map<std::uint64_t, std::unique_ptr<Capture>> captures_ GP_GUARDED_BY(mutex_);
    std::map<StreamKey, Capture*> by_stream_ GP_GUARDED_BY(mutex_);
    std::unordered_map<CUevent, std::uint64_t> events_ GP_GUARDED_BY(mutex_);
    std::atomic<std::size_t> active_{0}, captured_events_{0};
};

}  // namespace gpupool::client
