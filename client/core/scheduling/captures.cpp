#include "client/core/scheduling/captures.h"

#include "client/core/dispatch/thread.h"
#include "client/core/session/contexts.h"
#include "protocol/codec/handles.h"

namespace gpupool::client {
namespace {

constexpr std::uint64_t kLegacy = 1, kOwn = 2;

}  // namespace

StreamKey stream_key(CUstream stream) {
    const ThreadState& thread = this_thread();
    std::uint64_t value = codec::to_wire(stream);
    if (value == 0) {
        value = thread.per_thread_default ? kOwn : kLegacy;
    }
    return stream_key(value, thread.current() == nullptr ? 0 : thread.current()->id, thread.index);
}

StreamKey stream_key(std::uint64_t stream, std::uint64_t context_id, std::uint32_t thread) {
    if (!is_default_stream(stream)) {
        return {stream, 0};
    }
    return {stream, context_id << 32 | (stream == kOwn ? thread : 0)};
}

bool is_default_stream(std::uint64_t stream) {
    return stream <= kOwn;
}

bool is_legacy(const StreamKey& key) {
    return key.first == kLegacy;
}

Captures::Capture* Captures::of_stream(const StreamKey& stream) const {
    const auto it = by_stream_.find(stream);
    return it == by_stream_.end() ? nullptr : it->second;
}

void Captures::begin(const StreamKey& stream, bool blocking, const ContextState* context, CUstreamCaptureMode mode,
                     bool into_graph) {
    const Lock lock(mutex_);
    auto capture = std::make_unique<Capture>();
    capture->id = next_id_++;
    capture->first = stream;
    capture->context = context;
    capture->owner = this_thread().index;
    capture->mode = mode;
    capture->blocking = blocking;
    capture->into_graph = into_graph;
    capture->streams.insert(stream);
    by_stream_[stream] = capture.get();
    captures_[capture->id] = std::move(capture);
    active_ = captures_.size();
}

bool Captures::end(const StreamKey& stream) {
    const Lock lock(mutex_);
    const Capture* const capture = of_stream(stream);
    if (capture == nullptr) {
        return false;
    }
    end_locked(*capture);
    return true;
}

void Captures::end_locked(const Capture& capture) {
    for (const StreamKey& member : capture.streams) {
        by_stream_.erase(member);
    }
    captures_.erase(capture.id);
    active_ = captures_.size();
}

void Captures::destroyed(const StreamKey& stream) {
    const Lock lock(mutex_);
    Capture* const capture = of_stream(stream);
    if (capture == nullptr) {
        return;
    }
    if (capture->first == stream) {
        end_locked(*capture);
    } else {
        leave(*capture, stream);
    }
}

void Captures::leave(Capture& capture, const StreamKey& stream) {
    capture.streams.erase(stream);
    capture.dependencies.erase(stream);
    by_stream_.erase(stream);
}

void Captures::join(const StreamKey& stream, bool blocking, std::uint64_t id) {
    const Lock lock(mutex_);
    const auto it = captures_.find(id);
    if (it == captures_.end() || by_stream_.contains(stream)) {
        return;
    }
    it->second->streams.insert(stream);
    it->second->blocking = it->second->blocking || blocking;
    by_stream_[stream] = it->second.get();
}

void Captures::ended(const ContextState& context) {
    const Lock lock(mutex_);
    for (auto it = captures_.begin(); it != captures_.end();) {
        const Capture& capture = *(it++)->second;
        if (capture.context == &context) {
            end_locked(capture);
        }
    }
    // Default streams of this context that joined a capture of another context: a primary context that is made again
    // has the same default streams.
    for (auto it = by_stream_.begin(); it != by_stream_.end();) {
        const auto [stream, capture] = *(it++);
        if (is_default_stream(stream.first) && stream.second >> 32 == context.id) {
            leave(*capture, stream);
        }
    }
}

std::optional<Captures::Status> Captures::find(const StreamKey& stream) const {
    if (!any()) {
        return {};
    }
    const Lock lock(mutex_);
    const Capture* const capture = of_stream(stream);
    return capture == nullptr
               ? std::nullopt
               : std::optional<Status>({capture->id, capture->invalid, capture->into_graph, capture->graph});
}

bool Captures::may_end(const StreamKey& stream) const {
    const Lock lock(mutex_);
    const Capture* const capture = of_stream(stream);
    return capture == nullptr || capture->mode == CU_STREAM_CAPTURE_MODE_RELAXED ||
           capture->owner == this_thread().index;
}

void Captures::invalidate(const StreamKey& stream) {
    const Lock lock(mutex_);
    if (Capture* const capture = of_stream(stream)) {
        capture->invalid = true;
    }
}

void Captures::invalidate(std::uint64_t id) {
    const Lock lock(mutex_);
    if (const auto it = captures_.find(id); it != captures_.end()) {
        it->second->invalid = true;
    }
}

bool Captures::began(const StreamKey& stream) const {
    const Lock lock(mutex_);
    const Capture* const capture = of_stream(stream);
    return capture != nullptr && capture->first == stream;
}

void Captures::note_graph(const StreamKey& stream, CUgraph graph) {
    const Lock lock(mutex_);
    if (Capture* const capture = of_stream(stream)) {
        capture->graph = graph;
    }
}

CUresult Captures::before_work(const StreamKey& stream, const ContextState* context) {
    const Lock lock(mutex_);
    if (const Capture* const capture = of_stream(stream)) {
        return capture->invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
    }
    if (!is_legacy(stream)) {
        return CUDA_SUCCESS;
    }
    // The legacy stream would have to wait for work of a blocking stream that is only being captured.
    CUresult result = CUDA_SUCCESS;
    for (const auto& [id, capture] : captures_) {
        if (capture->blocking && capture->context == context) {
            capture->invalid = true;
            result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
        }
    }
    return result;
}

CUresult Captures::before_unsafe_call() {
    const ThreadState& thread = this_thread();
    if (thread.capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED) {
        return CUDA_SUCCESS;
    }
    CUresult result = CUDA_SUCCESS;
    const Lock lock(mutex_);
    for (const auto& [id, capture] : captures_) {
        const bool forbids = capture->owner == thread.index ? capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED
                                                            : capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
                                                                  thread.capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
        if (forbids) {
            capture->invalid = true;
            result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    }
    return result;
}

CUresult Captures::refuse_if_capturing(const StreamKey& stream) {
    const Lock lock(mutex_);
    Capture* const capture = of_stream(stream);
    if (capture == nullptr) {
        return CUDA_SUCCESS;
    }
    capture->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult Captures::before_context_wait(const ContextState* context) {
    CUresult result = CUDA_SUCCESS;
    const Lock lock(mutex_);
    for (const auto& [id, capture] : captures_) {
        if (capture->context == context) {
            capture->invalid = true;
            result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    }
    return result;
}

void Captures::recorded(CUevent event, const StreamKey& stream) {
    const Lock lock(mutex_);
    if (const Capture* const capture = of_stream(stream)) {
        events_[event] = capture->id;
    } else {
        events_.erase(event);
    }
    captured_events_ = events_.size();
}

void Captures::forget(CUevent event) {
    if (!any_events()) {
        return;
    }
    const Lock lock(mutex_);
    events_.erase(event);
    captured_events_ = events_.size();
}

std::optional<std::uint64_t> Captures::capture_of(CUevent event) const {
    if (!any_events()) {
        return {};
    }
    const Lock lock(mutex_);
    const auto it = events_.find(event);
    return it == events_.end() ? std::nullopt : std::optional(it->second);
}

bool Captures::active(std::uint64_t id) const {
    const Lock lock(mutex_);
    return captures_.contains(id);
}

CUresult Captures::refuse_if_captured(CUevent event) {
    const std::optional<std::uint64_t> id = capture_of(event);
    if (!id) {
        return CUDA_SUCCESS;
    }
    const Lock lock(mutex_);
    const auto it = captures_.find(*id);
    if (it == captures_.end() || it->second->invalid) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    it->second->invalid = true;
    return CUDA_ERROR_CAPTURED_EVENT;
}

Captures::Dependencies* Captures::dependencies_of(const StreamKey& stream) {
    const Lock lock(mutex_);
    Capture* const capture = of_stream(stream);
    return capture == nullptr ? nullptr : &capture->dependencies[stream];
}

}  // namespace gpupool::client
