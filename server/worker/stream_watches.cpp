#include "server/worker/stream_watches.h"

#include "server/worker/worker.h"

namespace gpupool::worker {

void tell_of_stream(Worker& worker, const StreamName& stream, CUresult result) {
    worker.send_what_precedes(result);
    worker.notify(codec::NoticeType::stream_complete,
                  codec::StreamCompleteNotice{on_wire(stream), codec::to_wire(stream.context), stream.thread, result});
}

bool poll_stream_watches(Worker& worker) {
    return worker.stream_watches.poll([&](const StreamName& name) {
        StreamState* const stream = worker.objects.stream(name);
        if (stream == nullptr || stream->capturing) {
            tell_of_stream(worker, name, CUDA_ERROR_INVALID_HANDLE);
            return true;
        }
        CUresult result = worker.scheduler.query(*stream);
        if (result == CUDA_ERROR_NOT_READY) {
            return false;
        }
        if (result == CUDA_SUCCESS) {
            worker.scheduler.settle();
            result = stream->context->any_latched() ? CUDA_ERROR_NOT_READY : result;  // who asks hears of the failure
        }
        tell_of_stream(worker, name, result);
        return true;
    });
}

}  // namespace gpupool::worker
