#include "server/worker/scheduling/capture.h"

namespace gpupool::worker {

void note_capture(Worker& worker, StreamState& stream) {
    if ((worker.captures == 0 && !stream.capturing) || stream.legacy) {
        return;
    }
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    driver::call(worker.api.cuStreamIsCapturing, stream.driver, &status);
    stream.capturing = status != CU_STREAM_CAPTURE_STATUS_NONE;
}

void note_captures(Worker& worker) {
    for (auto& [handle, context] : worker.objects.contexts) {
        worker.scheduler.enter(context.get());
        context->each_stream([&](StreamState& stream) {
            if (stream.capturing) {
                note_capture(worker, stream);
            }
        });
    }
}

void note_end_of_capture(Worker& worker) {
    note_captures(worker);
    --worker.captures;
}

void discard_capture(Worker& worker, StreamState& stream) {
    CUgraph graph = nullptr;
    worker.scheduler.enter(stream.context);
    driver::call(worker.api.cuStreamEndCapture, stream.driver, &graph);
    if (graph != nullptr && worker.handles.known_handle(graph) == nullptr) {
        driver::call(worker.api.cuGraphDestroy, graph);
    }
    note_capture(worker, stream);
    if (!stream.capturing) {
        stream.began_capture = false;
        note_end_of_capture(worker);
    }
}

bool captures_now(Worker& worker, StreamState& stream) {
    if (!stream.capturing || worker.scheduler.enter(stream.context) != CUDA_SUCCESS) {
        return false;
    }
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    const CUresult result = driver::call(worker.api.cuStreamIsCapturing, stream.driver, &status);
    if (result == CUDA_SUCCESS && status == CU_STREAM_CAPTURE_STATUS_NONE) {
        stream.capturing = false;
    }
    return result == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

}  // namespace gpupool::worker
