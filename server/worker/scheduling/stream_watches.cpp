#include "server/worker/scheduling/stream_watches.h"

namespace gpupool::worker {

void StreamWatches::notify(const StreamName& stream, std::uint64_t command, CUresult result) {
    answers_.send_what_precedes(result);
    answers_.notify(
        codec::NoticeType::stream_complete,
        codec::StreamCompleteNotice{on_wire(stream), codec::to_wire(stream.context), command, stream.thread, result});
}

bool StreamWatches::ended(const Watch& watch) {
    StreamState* const stream = objects_.stream(watch.stream);
    if (stream == nullptr || !Scheduler::may_be_queried(*stream)) {
        notify(watch.stream, watch.command, CUDA_ERROR_NOT_READY);
        return true;
    }
    CUresult result = scheduler_.query(*stream);
    if (result == CUDA_ERROR_NOT_READY) {
        return false;
    }
    if (result == CUDA_SUCCESS) {
        scheduler_.flush_completions();
        result = stream->context->result_to_notify(result);
    }
    notify(watch.stream, watch.command, result);
    return true;
}

bool StreamWatches::poll() {
    if (watches_.empty()) {
        return false;  // the usual case, which does not even read the clock
    }
    const auto now = clock_.now();
    if (now - polled_ < std::max(kLeast, kEach * static_cast<int>(watches_.size()))) {
        return false;
    }
    polled_ = now;
    return std::erase_if(watches_, [&](const Watch& watch) { return ended(watch); }) != 0;
}

}  // namespace gpupool::worker
