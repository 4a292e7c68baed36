// Stream capture: the server's driver captures, the client enforces the rules (client/core/scheduling/captures.h).

#include <algorithm>

#include "client/calls/handlers.h"
#include "client/calls/memory.h"
#include "client/calls/streams.h"
#include "client/core/dispatch/remote.h"

namespace gpupool::client::entry {
namespace {

bool is_mode(CUstreamCaptureMode mode) {
    return mode >= CU_STREAM_CAPTURE_MODE_GLOBAL && mode <= CU_STREAM_CAPTURE_MODE_RELAXED;
}

template <class Send>
CUresult begin(CUstream stream, CUstreamCaptureMode mode, bool into_graph, Send send) {
    StreamInfo info;
    CUresult result = find_stream(stream, info);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (!is_mode(mode)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const StreamKey key = stream_key(stream);
    if (is_legacy(key)) {
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    result = send();
    if (result == CUDA_SUCCESS) {
        this_session().captures.begin(key, info.blocking(), info.context, mode, into_graph);
    }
    return result;
}

// The status as the client knows it; `found` is empty if the stream does not capture.
CUresult status_of(CUstream stream, CUstreamCaptureStatus* status, std::optional<Captures::Status>& found) {
    StreamInfo info;
    const CUresult result = find_stream(stream, info);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (status == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    Captures& captures = this_session().captures;
    const StreamKey key = stream_key(stream);
    if (is_legacy(key) && captures.any()) {
        // A query of the legacy stream counts as work: it would have to wait for the capture.
        if (const CUresult implicit = captures.before_work(key, info.context); implicit != CUDA_SUCCESS) {
            return implicit;
        }
    }
    found = captures.find(key);
    *status = !found           ? CU_STREAM_CAPTURE_STATUS_NONE
              : found->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                               : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    return CUDA_SUCCESS;
}

CUresult information(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
                     const CUgraphNode** nodes, const CUgraphEdgeData** edges, std::size_t* count) {
    std::optional<Captures::Status> found;
    CUresult result = status_of(stream, status, found);
    if (result != CUDA_SUCCESS || !found) {
        return result;
    }
    if (id != nullptr) {
        *id = found->id;
    }
    if (found->invalid || (graph == nullptr && nodes == nullptr && edges == nullptr && count == nullptr)) {
        return CUDA_SUCCESS;
    }
    constexpr std::size_t kMaxDependencies = 4096;
    CUgraph captured = nullptr;
    Captures::Dependencies seen;
    seen.nodes.resize(kMaxDependencies);
    seen.edges.resize(kMaxDependencies);
    std::size_t seen_count = 0;
    result = remote<calls::gpCaptureInfo>(stream, &captured, seen.nodes.data(), seen.edges.data(), kMaxDependencies,
                                          &seen_count);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    seen.nodes.resize(std::min(seen_count, kMaxDependencies));
    seen.edges.resize(seen.nodes.size());
    if (edges == nullptr && std::any_of(seen.edges.begin(), seen.edges.end(), [](const CUgraphEdgeData& edge) {
            return edge.from_port != 0 || edge.to_port != 0 || edge.type != 0;
        })) {
        return CUDA_ERROR_LOSSY_QUERY;
    }
    this_session().captures.note_graph(stream_key(stream), captured);
    Captures::Dependencies* const kept = this_session().captures.dependencies_of(stream_key(stream));
    if (kept == nullptr) {
        return CUDA_ERROR_ILLEGAL_STATE;
    }
    *kept = std::move(seen);
    const auto store = [](auto* place, auto value) {
        if (place != nullptr) {
            *place = value;
        }
    };
    store(graph, captured);
    store(nodes, static_cast<const CUgraphNode*>(kept->nodes.data()));
    store(edges, static_cast<const CUgraphEdgeData*>(kept->edges.data()));
    store(count, kept->nodes.size());
    return CUDA_SUCCESS;
}

}  // namespace

CUresult cuStreamBeginCapture(CUstream hStream) {
    return entry::cuStreamBeginCapture_v2(hStream, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

CUresult cuStreamBeginCapture_v2(CUstream hStream, CUstreamCaptureMode mode) {
    return begin(hStream, mode, false, [&] { return remote<calls::cuStreamBeginCapture_v2>(hStream, mode); });
}

CUresult cuStreamBeginCaptureToGraph(CUstream hStream, CUgraph hGraph, const CUgraphNode* dependencies,
                                     const CUgraphEdgeData* dependencyData, std::size_t numDependencies,
                                     CUstreamCaptureMode mode) {
    return begin(hStream, mode, true, [&] {
        this_session().graphs.remove(hGraph);  // the client does not see what the capture adds
        return remote<calls::cuStreamBeginCaptureToGraph>(hStream, hGraph, dependencies, dependencyData,
                                                          numDependencies, mode);
    });
}

CUresult cuStreamEndCapture(CUstream hStream, CUgraph* phGraph) {
    StreamInfo info;
    CUresult result = find_stream(hStream, info);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    Captures& captures = this_session().captures;
    const StreamKey key = stream_key(hStream);
    const std::optional<Captures::Status> capture = captures.find(key);
    if (phGraph == nullptr && !(capture && capture->into_graph)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!capture) {
        return CUDA_ERROR_ILLEGAL_STATE;
    }
    if (!captures.began(key)) {
        captures.invalidate(key);
        return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    }
    // The driver ends the capture in the wrong thread too, and gives no graph.
    const bool wrong_thread = !captures.may_end(key);
    CUgraph graph = nullptr;
    result = remote<calls::gpCaptureEnd>(hStream, capture->invalid || wrong_thread ? 1u : 0u, &graph);
    captures.end(key);
    if (graph != nullptr) {
        this_session().graphs.add(graph);
    }
    Session& s = this_session();
    forget_graph_memory(s, s.graph_memories.end_capture(capture->id, graph));
    if (graph == nullptr && !capture->into_graph && capture->graph != nullptr) {
        UserObjects::Destructors due;
        s.user_objects.destroy(capture->graph, due);
        run(due);
    }
    if (phGraph != nullptr) {
        *phGraph = graph;
    }
    if (result == kSessionLost) {
        return result;
    }
    if (wrong_thread) {
        return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    }
    return capture->invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : result;
}

CUresult cuStreamIsCapturing(CUstream hStream, CUstreamCaptureStatus* captureStatus) {
    std::optional<Captures::Status> found;
    return status_of(hStream, captureStatus, found);
}

CUresult cuStreamGetCaptureInfo(CUstream hStream, CUstreamCaptureStatus* captureStatus_out, cuuint64_t* id_out) {
    return information(hStream, captureStatus_out, id_out, nullptr, nullptr, nullptr, nullptr);
}

CUresult cuStreamGetCaptureInfo_v2(CUstream hStream, CUstreamCaptureStatus* captureStatus_out, cuuint64_t* id_out,
                                   CUgraph* graph_out, const CUgraphNode** dependencies_out,
                                   std::size_t* numDependencies_out) {
    return information(hStream, captureStatus_out, id_out, graph_out, dependencies_out, nullptr, numDependencies_out);
}

CUresult cuStreamGetCaptureInfo_v3(CUstream hStream, CUstreamCaptureStatus* captureStatus_out, cuuint64_t* id_out,
                                   CUgraph* graph_out, const CUgraphNode** dependencies_out,
                                   const CUgraphEdgeData** edgeData_out, std::size_t* numDependencies_out) {
    return information(hStream, captureStatus_out, id_out, graph_out, dependencies_out, edgeData_out,
                       numDependencies_out);
}

CUresult cuStreamUpdateCaptureDependencies(CUstream hStream, CUgraphNode* dependencies, std::size_t numDependencies,
                                           unsigned flags) {
    return entry::cuStreamUpdateCaptureDependencies_v2(hStream, dependencies, nullptr, numDependencies, flags);
}

CUresult cuStreamUpdateCaptureDependencies_v2(CUstream hStream, CUgraphNode* dependencies,
                                              const CUgraphEdgeData* dependencyData, std::size_t numDependencies,
                                              unsigned flags) {
    const auto capture = this_session().captures.find(stream_key(hStream));
    if (!capture || capture->invalid) {
        return !capture ? CUDA_ERROR_ILLEGAL_STATE : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    return remote<calls::cuStreamUpdateCaptureDependencies_v2>(hStream, dependencies, dependencyData, numDependencies,
                                                               flags);
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
    if (mode == nullptr || !is_mode(*mode)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    std::swap(this_thread().capture_mode, *mode);
    return CUDA_SUCCESS;
}

}  // namespace gpupool::client::entry
