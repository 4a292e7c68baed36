// Stream capture: beginning, ending and queries.
#include "server/softgpu/api/graph_handles.h"
#include "server/softgpu/graph/capture_state.h"

using namespace gpupool::softgpu;

namespace {

bool good_mode(CUstreamCaptureMode mode) {
    return mode == CU_STREAM_CAPTURE_MODE_GLOBAL || mode == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL ||
           mode == CU_STREAM_CAPTURE_MODE_RELAXED;
}

// `graph`: if set, captures into this graph behind `dependencies`.
CUresult begin(CUstream handle, CUstreamCaptureMode mode, const GraphPtr& graph,
               const std::vector<CUgraphNode>& dependencies) {
    SOFTGPU_STREAM(handle, stream);
    if (!good_mode(mode)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (is_legacy(*stream)) {
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    const Lock lock(graph_mutex());
    if (captures().of(*stream) != nullptr) {
        return CUDA_ERROR_ILLEGAL_STATE;
    }
    if (graph != nullptr && graph->capturing) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    auto capture = std::make_shared<Capture>();
    capture->id = state().next_id.fetch_add(1);
    capture->mode = mode;
    capture->owner = std::this_thread::get_id();
    capture->origin = stream;
    capture->into_existing_graph = graph != nullptr;
    capture->graph = graph;
    if (graph == nullptr) {
        capture->graph = std::make_shared<Graph>();
        capture->graph->id = state().next_id.fetch_add(1);
        graphs().graphs.add(capture->graph);
    }
    captures().begin(std::move(capture), dependencies);
    return CUDA_SUCCESS;
}

// Checks that all work captured in other streams precedes the origin's next node.
bool all_joined(const Capture& capture) GP_REQUIRES(graph_mutex()) {
    std::vector<Node*> reached = resolve(capture.streams.at(capture.origin.get()).dependencies);
    std::vector<const Node*> seen(reached.begin(), reached.end());
    std::sort(seen.begin(), seen.end());
    for (std::size_t i = 0; i < reached.size(); ++i) {
        for (Node* before : reached[i]->dependencies) {
            const auto at = std::lower_bound(seen.begin(), seen.end(), before);
            if (at != seen.end() && *at == before) {
                continue;
            }
            seen.insert(at, before);
            reached.push_back(before);
        }
    }
    return std::all_of(
        capture.streams.begin(), capture.streams.end(), [&](const auto& entry) GP_REQUIRES(graph_mutex()) {
            const auto last = resolve(entry.second.dependencies);
            return std::all_of(last.begin(), last.end(),
                               [&](const Node* node) { return std::binary_search(seen.begin(), seen.end(), node); });
        });
}

struct CaptureInfo {
    CUstreamCaptureStatus* status = nullptr;
    cuuint64_t* id = nullptr;
    CUgraph* graph = nullptr;
    const CUgraphNode** dependencies = nullptr;
    const CUgraphEdgeData** edges = nullptr;
    size_t* count = nullptr;
};

CUresult ask(CUstream handle, const CaptureInfo& info) {
    SOFTGPU_STREAM(handle, stream);
    SOFTGPU_NOT_NULL(info.status);
    const Lock lock(graph_mutex());
    // A query of the legacy stream does not invalidate captures, but fails while a blocking stream captures.
    if (is_legacy(*stream) && captures().any_blocking(stream->context)) {
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    Capture* capture = captures().of(*stream);
    *info.status = capture == nullptr ? CU_STREAM_CAPTURE_STATUS_NONE
                   : capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                      : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    if (*info.status != CU_STREAM_CAPTURE_STATUS_ACTIVE) {
        return CUDA_SUCCESS;
    }
    auto& mine = capture->streams[stream.get()];
    mine.edges.assign(mine.dependencies.size(), CUgraphEdgeData{});
    if (info.id != nullptr) {
        *info.id = capture->id;
    }
    if (info.graph != nullptr) {
        *info.graph = reinterpret_cast<CUgraph>(capture->graph.get());
    }
    if (info.dependencies != nullptr) {
        *info.dependencies = mine.dependencies.data();
    }
    if (info.edges != nullptr) {
        *info.edges = mine.edges.data();
    }
    if (info.count != nullptr) {
        *info.count = mine.dependencies.size();
    }
    return CUDA_SUCCESS;
}

CUresult change_dependencies(CUstream handle, const CUgraphNode* nodes, const CUgraphEdgeData* edges, size_t count,
                             unsigned flags) {
    SOFTGPU_STREAM(handle, stream);
    if (flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES || !good_edges(edges, count)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const Lock lock(graph_mutex());
    Capture* capture = captures().of(*stream);
    if (capture == nullptr) {
        return CUDA_ERROR_ILLEGAL_STATE;
    }
    if (capture->invalid) {
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    std::vector<Node*> found;
    if (!find_dependencies(*capture->graph, nodes, count, found)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES) {
        capture->streams[stream.get()].dependencies.clear();
    }
    capture->join(stream, {nodes, nodes + count});
    return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

CUresult CUDAAPI cuStreamBeginCapture(CUstream stream) {
    return begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL, nullptr, {});
}
CUresult CUDAAPI cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
    return begin(stream, mode, nullptr, {});
}

CUresult CUDAAPI cuStreamBeginCaptureToGraph(CUstream stream, CUgraph handle, const CUgraphNode* dependencies,
                                             const CUgraphEdgeData* edges, size_t count, CUstreamCaptureMode mode) {
    GraphPtr graph;
    {
        SOFTGPU_GRAPHS();
        SOFTGPU_GRAPH(handle, found);
        std::vector<Node*> nodes;
        if (!find_dependencies(*found, dependencies, count, nodes) || !good_edges(edges, count)) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        graph = found;
    }
    return begin(stream, mode, graph, {dependencies, dependencies + count});
}

CUresult CUDAAPI cuStreamEndCapture(CUstream handle, CUgraph* result) {
    SOFTGPU_STREAM(handle, stream);
    const Lock lock(graph_mutex());
    Capture* capture = captures().of(*stream);
    if (result == nullptr && !(capture != nullptr && capture->into_existing_graph)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUgraph unwanted = nullptr;
    result = result == nullptr ? &unwanted : result;
    if (capture == nullptr) {
        return CUDA_ERROR_ILLEGAL_STATE;
    }
    *result = nullptr;
    if (capture->origin != stream) {
        capture->invalid = true;
        return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    }
    if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->owner != std::this_thread::get_id()) {
        captures().end(*capture, false);
        return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    }
    const bool invalid = capture->invalid;
    const bool joined = !invalid && all_joined(*capture);
    if (joined) {
        *result = reinterpret_cast<CUgraph>(capture->graph.get());
    }
    captures().end(*capture, joined);
    if (invalid) {
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    return joined ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
}

CUresult CUDAAPI cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
    return ask(stream, {status});
}
CUresult CUDAAPI cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id) {
    return ask(stream, {status, id});
}
CUresult CUDAAPI cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id,
                                           CUgraph* graph, const CUgraphNode** dependencies, size_t* count) {
    return ask(stream, {status, id, graph, dependencies, nullptr, count});
}
CUresult CUDAAPI cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id,
                                           CUgraph* graph, const CUgraphNode** dependencies,
                                           const CUgraphEdgeData** edges, size_t* count) {
    return ask(stream, {status, id, graph, dependencies, edges, count});
}

CUresult CUDAAPI cuStreamUpdateCaptureDependencies(CUstream stream, CUgraphNode* nodes, size_t count, unsigned flags) {
    return change_dependencies(stream, nodes, nullptr, count, flags);
}
CUresult CUDAAPI cuStreamUpdateCaptureDependencies_v2(CUstream stream, CUgraphNode* nodes, const CUgraphEdgeData* edges,
                                                      size_t count, unsigned flags) {
    return change_dependencies(stream, nodes, edges, count, flags);
}

CUresult CUDAAPI cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
    SOFTGPU_READY();
    if (mode == nullptr || !good_mode(*mode)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    std::swap(*mode, thread_capture_mode());
    return CUDA_SUCCESS;
}

}  // extern "C"
