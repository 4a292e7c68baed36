#include "server/worker/scheduling/capture.h"

namespace gpupool::worker {

void note_capture(SessionView& session, StreamState& stream) {
    if ((session.objects.captures == 0 && !stream.capturing) || stream.legacy) {
        return;
    }
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    driver::call(session.api.cuStreamIsCapturing, stream.driver, &status);
    stream.capturing = status != CU_STREAM_CAPTURE_STATUS_NONE;
}

void note_captures(SessionView& session) {
    for (auto& [handle, context] : session.objects.contexts) {
        session.scheduler.enter(context.get());
        context->each_stream([&](StreamState& stream) {
            if (stream.capturing) {
                note_capture(session, stream);
            }
        });
    }
}

void note_end_of_capture(SessionView& session) {
    note_captures(session);
    --session.objects.captures;
}

void discard_capture(SessionView& session, StreamState& stream) {
    CUgraph graph = nullptr;
    session.scheduler.enter(stream.context);
    driver::call(session.api.cuStreamEndCapture, stream.driver, &graph);
    if (graph != nullptr && session.handles.known_handle(graph) == nullptr) {
        driver::call(session.api.cuGraphDestroy, graph);
    }
    note_capture(session, stream);
    if (!stream.capturing) {
        stream.began_capture = false;
        note_end_of_capture(session);
    }
}

bool captures_now(SessionView& session, StreamState& stream) {
    if (!stream.capturing || session.scheduler.enter(stream.context) != CUDA_SUCCESS) {
        return false;
    }
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    const CUresult result = driver::call(session.api.cuStreamIsCapturing, stream.driver, &status);
    if (result == CUDA_SUCCESS && status == CU_STREAM_CAPTURE_STATUS_NONE) {
        stream.capturing = false;
    }
    return result == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

}  // namespace gpupool::worker
