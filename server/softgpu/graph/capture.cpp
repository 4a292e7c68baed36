#include "server/softgpu/graph/capture.h"

#include <algorithm>

#include "server/softgpu/graph/capture_state.h"

namespace gpupool::softgpu {

std::atomic<int>& capture_count() {
    static std::atomic<int> count{0};
    return count;
}

Captures& captures() {
    static Captures& instance = *new Captures;
    return instance;
}

CUstreamCaptureMode& thread_capture_mode() {
    thread_local CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    return mode;
}

std::vector<Node*> resolve(const std::vector<CUgraphNode>& handles) {
    std::vector<Node*> result;
    for (const CUgraphNode handle : handles) {
        const auto node = graphs().nodes.find(handle);
        if (node != nullptr && std::find(result.begin(), result.end(), node.get()) == result.end()) {
            result.push_back(node.get());
        }
    }
    return result;
}

void Capture::join(const StreamPtr& stream, const std::vector<CUgraphNode>& dependencies) {
    auto& mine = streams[stream.get()];
    mine.stream = stream;
    for (const CUgraphNode node : dependencies) {
        if (std::find(mine.dependencies.begin(), mine.dependencies.end(), node) == mine.dependencies.end()) {
            mine.dependencies.push_back(node);
        }
    }
}

Capture* Captures::of(const Stream& stream) const {
    const auto found = by_stream.find(&stream);
    return found == by_stream.end() ? nullptr : found->second.get();
}

bool Captures::any_blocking(const Context& context) const {
    return std::any_of(by_stream.begin(), by_stream.end(), [&](const auto& entry) {
        return &entry.first->context == &context && (entry.first->flags & CU_STREAM_NON_BLOCKING) == 0;
    });
}

void Captures::invalidate_blocking(const Context& context) {
    for (const auto& [stream, capture] : by_stream) {
        if (&stream->context == &context && (stream->flags & CU_STREAM_NON_BLOCKING) == 0) {
            capture->invalid = true;
        }
    }
}

void Captures::begin(std::shared_ptr<Capture> capture, const std::vector<CUgraphNode>& dependencies) {
    capture->join(capture->origin, dependencies);
    capture->graph->capturing = true;
    by_stream[capture->origin.get()] = capture;
    all.push_back(std::move(capture));
    capture_count().fetch_add(1);
}

void Captures::end(Capture& capture, bool keep_graph) {
    for (const auto& [stream, mine] : capture.streams) {
        by_stream.erase(stream);
    }
    capture.graph->capturing = false;
    if (!keep_graph && !capture.into_existing_graph) {
        graphs().graphs.remove(capture.graph.get());
    }
    capture_count().fetch_sub(1);
    // Last, since this may be the last reference.
    all.erase(std::find_if(all.begin(), all.end(), [&](const auto& c) { return c.get() == &capture; }));
}

CUresult may_submit(const StreamPtr& stream, bool& captures_now) {
    if (is_legacy(*stream)) {
        if (!captures().any_blocking(stream->context)) {
            return CUDA_SUCCESS;
        }
        captures().invalidate_blocking(stream->context);
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    const Capture* capture = captures().of(*stream);
    if (capture == nullptr) {
        return CUDA_SUCCESS;
    }
    if (capture->invalid) {
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    captures_now = true;
    return CUDA_SUCCESS;
}

Node* add_captured(const StreamPtr& stream, PayloadPtr payload) {
    Capture& capture = *captures().of(*stream);
    auto& mine = capture.streams[stream.get()];
    Node* node = capture.graph->add(std::move(payload), resolve(mine.dependencies));
    graphs().nodes.add(capture.graph->nodes.back());
    mine.dependencies = {reinterpret_cast<CUgraphNode>(node)};
    return node;
}

CUresult refuse_unsafe_call() {
    if (capture_count().load() == 0) {
        return CUDA_SUCCESS;
    }
    const CUstreamCaptureMode mode = thread_capture_mode();
    if (mode == CU_STREAM_CAPTURE_MODE_RELAXED) {
        return CUDA_SUCCESS;
    }
    const Lock lock(graph_mutex());
    CUresult result = CUDA_SUCCESS;
    for (const auto& capture : captures().all) {
        const bool own = capture->owner == std::this_thread::get_id();
        const bool minds =
            own ? capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED
                : mode == CU_STREAM_CAPTURE_MODE_GLOBAL && capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
        if (!minds) {
            continue;
        }
        capture->invalid = true;
        result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return result;
}

CUresult refuse_captured(const StreamPtr& stream) {
    if (capture_count().load() == 0) {
        return CUDA_SUCCESS;
    }
    const Lock lock(graph_mutex());
    bool captures_now = false;
    if (const CUresult error = may_submit(stream, captures_now); error != CUDA_SUCCESS) {
        return error;
    }
    if (!captures_now) {
        return CUDA_SUCCESS;
    }
    captures().of(*stream)->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult refuse_wait(const StreamPtr& stream) {
    if (const CUresult error = refuse_captured(stream); error != CUDA_SUCCESS) {
        return error;
    }
    return refuse_unsafe_call();
}

CUresult refuse_wait(const Context& context) {
    if (capture_count().load() == 0) {
        return CUDA_SUCCESS;
    }
    {
        const Lock lock(graph_mutex());
        bool any = false;
        for (const auto& [stream, capture] : captures().by_stream) {
            if (&stream->context != &context) {
                continue;
            }
            capture->invalid = true;
            any = true;
        }
        if (any) {
            return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    }
    return refuse_unsafe_call();
}

namespace {

// `capture`: set if the event was recorded in a capture that is still valid.
CUresult refuse_captured(const Event& event, std::shared_ptr<Capture>& capture) GP_REQUIRES(graph_mutex()) {
    if (event.captured == nullptr) {
        return CUDA_SUCCESS;
    }
    capture = event.captured->capture.lock();
    if (capture != nullptr && capture->invalid) {
        capture = nullptr;
    }
    return capture == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_CAPTURED_EVENT;
}

}  // namespace

CUresult refuse_captured(Event& event) {
    const Lock lock(graph_mutex());
    std::shared_ptr<Capture> capture;
    return refuse_captured(event, capture);
}

CUresult refuse_wait(Event& event) {
    {
        const Lock lock(graph_mutex());
        std::shared_ptr<Capture> capture;
        const CUresult error = refuse_captured(event, capture);
        if (capture != nullptr) {
            capture->invalid = true;
        }
        if (error != CUDA_SUCCESS) {
            return error;
        }
    }
    return refuse_unsafe_call();
}

bool record_captured(const std::shared_ptr<Event>& event, const StreamPtr& stream, bool external, CUresult& result) {
    const Lock lock(graph_mutex());
    bool captures_now = false;
    result = may_submit(stream, captures_now);
    if (result != CUDA_SUCCESS) {
        return true;
    }
    if (!captures_now) {
        if (external) {
            result = CUDA_ERROR_ILLEGAL_STATE;  // only allowed in a capture
        }
        if (!external) {
            event->captured = nullptr;
        }
        return external;
    }
    if (external) {
        add_captured(stream, event_payload(event, true));
        return true;
    }
    const auto& capture = captures().by_stream[stream.get()];
    auto recorded = std::make_shared<EventCapture>();
    recorded->capture = capture;
    recorded->nodes = capture->streams[stream.get()].dependencies;
    event->captured = std::move(recorded);
    return true;
}

namespace {

// Makes a stream that waits for an event of a capture in progress join the capture.
CUresult join(const std::shared_ptr<Capture>& theirs, const EventCapture& recorded, const StreamPtr& stream)
    GP_REQUIRES(graph_mutex()) {
    Capture* mine = captures().of(*stream);
    if (mine != nullptr && mine != theirs.get()) {
        mine->invalid = theirs->invalid = true;
        return CUDA_ERROR_STREAM_CAPTURE_MERGE;
    }
    if (theirs->invalid) {
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    if (is_legacy(*stream)) {
        theirs->invalid = true;
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    theirs->join(stream, recorded.nodes);
    captures().by_stream[stream.get()] = theirs;
    return CUDA_SUCCESS;
}

}  // namespace

bool wait_captured(const std::shared_ptr<Event>& event, const StreamPtr& stream, bool external, CUresult& result) {
    const Lock lock(graph_mutex());
    bool captures_now = false;
    result = may_submit(stream, captures_now);
    if (result != CUDA_SUCCESS) {
        return true;
    }
    if (external) {
        if (captures_now) {
            add_captured(stream, event_payload(event, false));
        } else {
            result = event->captured != nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_ILLEGAL_STATE;
        }
        return true;
    }
    if (event->captured != nullptr) {
        if (const auto theirs = event->captured->capture.lock()) {
            result = join(theirs, *event->captured, stream);
            return true;
        }
        // The event's capture has ended, so it cannot be waited for in or outside of a capture.
        if (captures_now) {
            captures().of(*stream)->invalid = true;
        }
        result = CUDA_ERROR_INVALID_VALUE;
        return true;
    }
    if (!captures_now) {
        return false;
    }
    const Lock event_lock(event->mutex);
    if (event->moment != nullptr) {
        captures().of(*stream)->invalid = true;
        result = CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    }
    return true;
}

void forget_stream(const Stream& stream) {
    if (capture_count().load() == 0) {
        return;
    }
    const Lock lock(graph_mutex());
    Capture* capture = captures().of(stream);
    if (capture == nullptr) {
        return;
    }
    if (capture->origin.get() == &stream) {
        capture->invalid = true;
        captures().end(*capture, false);
    } else {
        // Its nodes stay. The end of the capture checks whether the origin depends on them.
        captures().by_stream.erase(&stream);
    }
}

void forget_context(const Context& context) {
    if (capture_count().load() == 0) {
        return;
    }
    const Lock lock(graph_mutex());
    std::vector<Capture*> over;
    for (const auto& capture : captures().all) {
        if (&capture->origin->context == &context) {
            over.push_back(capture.get());
        }
    }
    for (Capture* capture : over) {
        captures().end(*capture, false);
    }
}

}  // namespace gpupool::softgpu
