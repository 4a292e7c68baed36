// The application's host functions: they run in the client, and the stream waits for them on a word of pinned memory.
//
// Not with a callback of the driver's: one that waits for the network would keep all others of the process from
// running.

#include "server/worker/serve.h"

namespace gpupool::worker::handlers {
namespace {

constexpr std::size_t kWordsPerBlock = 1024;

CUresult take_word(Worker& worker, HostFunctionWords::Word& wait) {
    if (worker.host_functions.spare.empty()) {
        void* block = nullptr;
        CUresult result = driver::call(worker.api.cuMemHostAlloc, &block, kWordsPerBlock * sizeof(std::uint32_t),
                                       static_cast<unsigned>(CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
        if (result != CUDA_SUCCESS) {
            return result;
        }
        CUdeviceptr device_block = 0;
        result = driver::call(worker.api.cuMemHostGetDevicePointer_v2, &device_block, block, 0u);
        if (result != CUDA_SUCCESS) {
            return result;
        }
        for (std::size_t i = 0; i < kWordsPerBlock; ++i) {
            worker.host_functions.spare.push_back(
                {static_cast<std::uint32_t*>(block) + i, device_block + i * sizeof(std::uint32_t)});
        }
    }
    wait = worker.host_functions.spare.back();
    worker.host_functions.spare.pop_back();
    __atomic_store_n(wait.word, 0u, __ATOMIC_RELEASE);
    return CUDA_SUCCESS;
}

}  // namespace

Outcome gpHostFunction(Worker& worker, Command& command, codec::Slots<calls::gpHostFunction>& slots) {
    using Call = calls::gpHostFunction;
    CUresult result = CUDA_SUCCESS;
    StreamState* stream = nullptr;
    if (auto waiting = await_turn(worker, command, slots.at<Call::stream>().value, stream)) {
        return std::move(*waiting);
    }
    if (stream->capturing) {
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;  // gpCaptureHostFunction
    }
    worker.scheduler.enter(stream->context);
    const std::uint64_t ticket = slots.at<Call::ticket>().value;
    if (worker.host_functions.waiting.contains(ticket)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    HostFunctionWords::Word wait;
    if (result = take_word(worker, wait); result != CUDA_SUCCESS) {
        return result;
    }
    worker.host_functions.waiting[ticket] = wait;
    // Everything before it is complete: the client may run it.
    worker.scheduler.mark(*stream, [&worker, ticket](CUresult status) {
        worker.send_host_changes();
        worker.notify(codec::NoticeType::host_function, codec::HostFunctionNotice{ticket, status, 0});
    });
    result = driver::call(worker.api.cuStreamWaitValue32_v2, stream->driver, wait.device_word, cuuint32_t{1},
                          static_cast<unsigned>(CU_STREAM_WAIT_VALUE_EQ));
    worker.scheduler.issued(*stream);
    // The word is free again when the stream has passed it.
    worker.scheduler.mark(*stream, [&worker, wait](CUresult) { worker.host_functions.spare.push_back(wait); });
    return result;
}

Outcome gpHostFunctionDone(Worker& worker, Command&, codec::Slots<calls::gpHostFunctionDone>& slots) {
    const std::uint64_t ticket = slots.at<calls::gpHostFunctionDone::ticket>().value;
    const auto it = worker.host_functions.waiting.find(ticket);
    if (it == worker.host_functions.waiting.end()) {
        return worker.graph_turns.function_done(ticket) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    }
    __atomic_store_n(it->second.word, 1u, __ATOMIC_RELEASE);
    worker.host_functions.waiting.erase(it);
    return CUDA_SUCCESS;
}

}  // namespace gpupool::worker::handlers
