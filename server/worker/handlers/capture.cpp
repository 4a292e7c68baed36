// Stream capture. The driver always captures in relaxed mode: the client enforces the modes that the program requested,
// and the session's own work must never be restricted by a capture.

#include "server/worker/scheduling/capture.h"

#include <algorithm>

#include "server/worker/graphs/graph_book.h"
#include "server/worker/graphs/graph_params.h"
#include "server/worker/handlers/handlers.h"

namespace gpupool::worker::handlers {
namespace {

// Begins a capture once the stream's queued work has been issued and marked, since no mark can be made while the stream
// captures.
template <class Begin>
Outcome begin(SessionView& session, Command& command, CUstream handle, bool to_given, Begin begin_capture) {
    CUresult result = CUDA_SUCCESS;
    StreamState* stream = session.stream_of(command, handle, result);
    if (stream == nullptr) {
        return result;
    }
    if (!stream->queue.empty() && !command.ready) {
        session.gate.queue(*stream, std::make_unique<QueuedCommand>(session, command));
        return Outcome::answered();
    }
    if (result = session.scheduler.enter(stream->context); result != CUDA_SUCCESS) {
        return result;
    }
    if (stream->unmarked != 0) {
        session.scheduler.mark(*stream, {});
    }
    result = begin_capture(stream->driver);
    if (result == CUDA_SUCCESS) {
        ++session.objects.captures;
        stream->capturing = stream->began_capture = true;
        stream->captures_to_given = to_given;
    }
    return result;
}

// The reason to discard a captured graph: a failed call whose caller did not wait has added no node, so the graph is
// not what the program meant.
CUresult why_not_kept(SessionView& session, StreamState& stream, bool discard) {
    if (discard) {
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    if (!stream.captures_to_given && session.handles.full()) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return stream.take_latched();
}

// Destroys the captured graph. One that existed before stays the program's, but cannot be instantiated.
void drop(GraphView& session, const StreamState& stream, CUgraph graph, CUresult why) {
    if (stream.captures_to_given) {
        session.graphs.failed.try_emplace(graph, why);
    } else {
        driver::call(session.api.cuGraphDestroy, graph);
    }
}

}  // namespace

Outcome cuStreamBeginCapture_v2(SessionView& session, Command& command,
                                codec::Slots<calls::cuStreamBeginCapture_v2>& slots) {
    return begin(session, command, slots.at<calls::cuStreamBeginCapture_v2::hStream>().value, false,
                 [&](CUstream stream) {
                     return driver::call(session.api.cuStreamBeginCapture_v2, stream, CU_STREAM_CAPTURE_MODE_RELAXED);
                 });
}

Outcome cuStreamBeginCaptureToGraph(SessionView& session, Command& command,
                                    codec::Slots<calls::cuStreamBeginCaptureToGraph>& slots) {
    using Call = calls::cuStreamBeginCaptureToGraph;
    Translator translator{session, command};
    translator.handle(slots.at<Call::hGraph>().value);
    for (CUgraphNode& node : slots.at<Call::dependencies>().object) {
        translator.handle(node);
    }
    if (translator.result != CUDA_SUCCESS) {
        return translator.result;
    }
    return begin(session, command, slots.at<Call::hStream>().value, true, [&](CUstream stream) {
        return driver::call(session.api.cuStreamBeginCaptureToGraph, stream, slots.at<Call::hGraph>().value,
                            slots.at<Call::dependencies>().value, slots.at<Call::dependencyData>().value,
                            slots.at<Call::numDependencies>().value, CU_STREAM_CAPTURE_MODE_RELAXED);
    });
}

Outcome gpCaptureEnd(GraphView& session, Command& command, codec::Slots<calls::gpCaptureEnd>& slots) {
    using Call = calls::gpCaptureEnd;
    CUresult result = CUDA_SUCCESS;
    StreamState* stream = session.stream_of(command, slots.at<Call::stream>().value, result);
    if (stream == nullptr) {
        return result;
    }
    if (!stream->capturing) {
        return CUDA_ERROR_ILLEGAL_STATE;
    }
    session.scheduler.enter(stream->context);
    CUgraph graph = nullptr;
    result = driver::call(session.api.cuStreamEndCapture, stream->driver, &graph);
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    driver::call(session.api.cuStreamIsCapturing, stream->driver, &status);
    if (status == CU_STREAM_CAPTURE_STATUS_NONE) {
        stream->began_capture = false;
        note_end_of_capture(session);
    }
    if (result == CUDA_SUCCESS) {
        result = why_not_kept(session, *stream, slots.at<Call::discard>().value != 0);
        if (result != CUDA_SUCCESS) {
            drop(session, *stream, graph, result);
            graph = nullptr;
        }
    }
    slots.at<Call::graph>().object = graph;
    return result;
}

Outcome gpCaptureInfo(SessionView& session, Command& command, codec::Slots<calls::gpCaptureInfo>& slots) {
    using Call = calls::gpCaptureInfo;
    CUresult result = CUDA_SUCCESS;
    StreamState* stream = session.stream_of(command, slots.at<Call::stream>().value, result);
    if (stream == nullptr) {
        return result;
    }
    session.scheduler.enter(stream->context);
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    cuuint64_t id = 0;
    const CUgraphNode* nodes = nullptr;
    const CUgraphEdgeData* edges = nullptr;
    std::size_t count = 0;
    result = driver::call(session.api.cuStreamGetCaptureInfo_v3, stream->driver, &status, &id,
                          &slots.at<Call::graph>().object, &nodes, &edges, &count);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    auto& out_nodes = slots.at<Call::dependencies>().object;
    auto& out_edges = slots.at<Call::edges>().object;
    const std::size_t kept = std::min({count, out_nodes.size(), out_edges.size()});
    std::copy_n(nodes, nodes == nullptr ? 0 : kept, out_nodes.begin());
    std::copy_n(edges, edges == nullptr ? 0 : kept, out_edges.begin());
    // Clear the rest of the arrays, which travels as well.
    std::fill(out_nodes.begin() + static_cast<std::ptrdiff_t>(kept), out_nodes.end(), nullptr);
    slots.at<Call::count>().object = kept;
    return CUDA_SUCCESS;
}

Outcome gpCaptureCopy(SessionView& session, Command& command, codec::Slots<calls::gpCaptureCopy>& slots) {
    using Call = calls::gpCaptureCopy;
    CUresult result = CUDA_SUCCESS;
    StreamState* stream = session.stream_of(command, slots.at<Call::stream>().value, result);
    if (stream == nullptr) {
        return result;
    }
    if (slots.at<Call::shape>().value == nullptr || !captures_now(session, *stream)) {
        return CUDA_ERROR_ILLEGAL_STATE;
    }
    GraphNode node;
    node.type = CU_GRAPH_NODE_TYPE_MEMCPY;
    node.copy = slots.at<Call::shape>().object;
    std::vector<unsigned char> payload;
    NodeParameters parameters;
    if (result = parameters.read(session.handles, session.objects, node, payload); result != CUDA_SUCCESS) {
        return result;
    }
    const std::optional<Submission> submission = enter<Call>(session, command, *stream);
    if (!submission) {
        return Outcome::answered();
    }
    session.scheduler.enter(stream->context);
    const CUDA_MEMCPY3D& copy = parameters.driver.memcpy.copyParams;
    const bool from_host = copy.srcMemoryType == CU_MEMORYTYPE_HOST, to_host = copy.dstMemoryType == CU_MEMORYTYPE_HOST;
    if (slots.at<Call::plain>().value != 0 && from_host && !to_host) {
        return driver::call(*submission, session.api.cuMemcpyHtoDAsync_v2, copy.dstDevice, copy.srcHost,
                            copy.WidthInBytes, stream->driver);
    }
    if (slots.at<Call::plain>().value != 0 && to_host && !from_host) {
        return driver::call(*submission, session.api.cuMemcpyDtoHAsync_v2, copy.dstHost, copy.srcDevice,
                            copy.WidthInBytes, stream->driver);
    }
    return driver::call(*submission, session.api.cuMemcpy3DAsync_v2, &copy, stream->driver);
}

Outcome gpCaptureHostFunction(SessionView& session, Command& command,
                              codec::Slots<calls::gpCaptureHostFunction>& slots) {
    using Call = calls::gpCaptureHostFunction;
    CUresult result = CUDA_SUCCESS;
    StreamState* stream = session.stream_of(command, slots.at<Call::stream>().value, result);
    if (stream == nullptr) {
        return result;
    }
    if (!captures_now(session, *stream)) {
        return CUDA_ERROR_ILLEGAL_STATE;
    }
    const std::optional<Submission> submission = enter<Call>(session, command, *stream);
    if (!submission) {
        return Outcome::answered();
    }
    return driver::call(*submission, session.api.cuLaunchHostFunc, stream->driver,
                        static_cast<CUhostFn>(placeholder_function),
                        codec::from_wire<void*>(slots.at<Call::function>().value));
}

}  // namespace gpupool::worker::handlers
