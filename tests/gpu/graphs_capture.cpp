#include <atomic>
#include <chrono>
#include <thread>

#include "tests/gpu/graphs.h"
#include "tests/gpu/latch.h"

namespace gpupool::programs {

namespace {

CUresult add_on(const GraphWork& work, CUstream stream, unsigned value) {
    return launch(work.add, GraphWork::kBlocks, GraphWork::kThreads, stream, work.device,
                  static_cast<unsigned>(GraphWork::kWords), value);
}

CUstreamCaptureStatus status_of(CUstream stream) {
    CUstreamCaptureStatus status{};
    DRIVER_OK(cuStreamIsCapturing(stream, &status));
    return status;
}

// The result of `call` during a capture in `mode`, and whether the capture survives it.
template <class Call>
void during_capture(const GraphWork& work, CUstreamCaptureMode mode, const char* what, CUresult expected, bool survives,
                    Call call) {
    DRIVER_OK(cuStreamBeginCapture(work.stream, mode));
    DRIVER_OK(add_on(work, work.stream, 1));
    const CUresult result = call();
    check_result(result, expected, what);
    CUgraph graph = nullptr;
    const CUresult end = cuStreamEndCapture(work.stream, &graph);
    check(end == (survives ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED) && (graph != nullptr) == survives,
          "%s: the capture %s (%s)", what, survives ? "goes on" : "is invalid", result_name(end).c_str());
    if (graph != nullptr) {
        DRIVER_OK(cuGraphDestroy(graph));
    }
}

CUresult allocate_and_free() {
    CUdeviceptr block = 0;
    const CUresult result = cuMemAlloc(&block, 1024);
    return result == CUDA_SUCCESS ? cuMemFree(block) : result;
}

template <class Call>
CUresult in_other_thread(const Device& device, Call call) {
    CUresult result = CUDA_ERROR_UNKNOWN;
    std::thread([&] {
        device.use();
        result = call();
    }).join();
    return result;
}

// An event that an ended capture recorded is unusable until it is recorded again. `event` has no timing.
void events_of_the_past(const GraphWork& work, CUevent event, CUstream other) {
    CUgraph graph = nullptr;
    CUevent timed = nullptr;
    float milliseconds = 0;
    DRIVER_OK(cuEventCreate(&timed, CU_EVENT_DEFAULT));
    DRIVER_OK(cuStreamBeginCapture(work.stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    DRIVER_OK(add_on(work, work.stream, 1));
    DRIVER_OK(cuEventRecord(event, work.stream));
    DRIVER_OK(cuEventRecord(timed, work.stream));
    check_result(cuEventElapsedTime(&milliseconds, timed, timed), CUDA_ERROR_CAPTURED_EVENT, "the time of an event");
    check_result(cuStreamEndCapture(work.stream, &graph), CUDA_SUCCESS, "which leaves its capture valid");
    for (const CUevent past : {event, timed}) {
        check_result(cuEventQuery(past), CUDA_ERROR_INVALID_VALUE, "asking for it");
        check_result(cuEventSynchronize(past), CUDA_ERROR_INVALID_VALUE, "waiting for it");
    }
    check_result(cuEventElapsedTime(&milliseconds, timed, timed), CUDA_ERROR_INVALID_VALUE, "its time");
    check_result(cuStreamWaitEvent(other, event, 0), CUDA_ERROR_INVALID_VALUE, "a stream that should wait for it");
    check_result(cuStreamQuery(other), CUDA_SUCCESS, "does not");
    DRIVER_OK(cuGraphDestroy(graph));
    DRIVER_OK(cuStreamBeginCapture(other, CU_STREAM_CAPTURE_MODE_RELAXED));
    check_result(cuStreamWaitEvent(other, event, 0), CUDA_ERROR_INVALID_VALUE, "one that captures");
    check_result(cuStreamEndCapture(other, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "does so in vain");
    DRIVER_OK(cuEventRecord(event, work.stream));
    check_result(cuEventSynchronize(event), CUDA_SUCCESS, "recorded again");
    DRIVER_OK(cuEventDestroy(timed));
}

}  // namespace

// Work enqueued before a stream began or joined a capture runs as usual.
void capture_behind_work(const GraphWork& work) {
    CUstream joining = nullptr;
    CUevent event = nullptr;
    DRIVER_OK(cuStreamCreate(&joining, CU_STREAM_NON_BLOCKING));
    DRIVER_OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    for (const bool joins : {false, true}) {
        std::atomic<bool> done{false};
        CUdeviceptr block = 0;
        DRIVER_OK(cuMemAlloc(&block, 1024));
        DRIVER_OK(cuLaunchHostFunc(
            joins ? joining : work.stream,
            [](void* data) {
                std::this_thread::sleep_for(std::chrono::milliseconds(30));  // a free that does not wait is sooner
                *static_cast<std::atomic<bool>*>(data) = true;
            },
            &done));
        DRIVER_OK(add_on(work, joins ? joining : work.stream, 1));
        DRIVER_OK(cuStreamBeginCapture(work.stream, CU_STREAM_CAPTURE_MODE_RELAXED));
        DRIVER_OK(add_on(work, work.stream, 1));
        DRIVER_OK(cuEventRecord(event, work.stream));
        DRIVER_OK(cuStreamWaitEvent(joining, event, 0));
        const CUresult result = cuMemFree(block);
        check(result == CUDA_SUCCESS && done, "a free waits for earlier work of a stream that %s (%s)",
              joins ? "joined a capture" : "captures", result_name(result).c_str());
        DRIVER_OK(add_on(work, joining, 1));
        DRIVER_OK(cuEventRecord(event, joining));
        DRIVER_OK(cuStreamWaitEvent(work.stream, event, 0));
        CUgraph graph = nullptr;
        DRIVER_OK(cuStreamEndCapture(work.stream, &graph));
        check(node_count(graph) == 2, "and the capture continues");
        DRIVER_OK(cuGraphDestroy(graph));
        DRIVER_OK(cuCtxSynchronize());
    }
    DRIVER_OK(cuEventDestroy(event));
    DRIVER_OK(cuStreamDestroy(joining));
}

// A capture ends when its first stream is destroyed. Earlier work of that stream still runs, and streams that had
// joined work as before.
void capture_destroyed(const GraphWork& work) {
    CUstream gone = nullptr, joining = nullptr;
    CUevent event = nullptr;
    DRIVER_OK(cuStreamCreate(&gone, CU_STREAM_NON_BLOCKING));
    DRIVER_OK(cuStreamCreate(&joining, CU_STREAM_NON_BLOCKING));
    DRIVER_OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    DRIVER_OK(cuMemsetD32(work.device, 1, GraphWork::kWords));
    DRIVER_OK(cuCtxSynchronize());
    work.host_out[0] = 0;
    Latch latch;
    DRIVER_OK(cuLaunchHostFunc(gone, Latch::wait, &latch));
    DRIVER_OK(add_on(work, gone, 6));
    DRIVER_OK(cuMemcpyDtoHAsync(work.host_out, work.device, GraphWork::kBytes, gone));
    DRIVER_OK(cuStreamBeginCapture(gone, CU_STREAM_CAPTURE_MODE_GLOBAL));
    DRIVER_OK(add_on(work, gone, 100));
    DRIVER_OK(cuEventRecord(event, gone));
    DRIVER_OK(cuStreamWaitEvent(joining, event, 0));
    check_result(cuStreamDestroy(gone), CUDA_SUCCESS, "a stream that captures is destroyed");
    check(status_of(joining) == CU_STREAM_CAPTURE_STATUS_NONE, "which ends its capture");
    latch.open();
    DRIVER_OK(cuLaunchHostFunc(
        joining, [](void*) {}, nullptr));
    check_result(cuCtxSynchronize(), CUDA_SUCCESS, "waiting for the context");
    check(work.host_holds(7), "the stream's earlier work (%u)", work.host_out[0]);
    DRIVER_OK(add_on(work, joining, 10));
    check(work.device_holds(17), "work of a stream that had joined");
    DRIVER_OK(cuEventDestroy(event));
    DRIVER_OK(cuStreamDestroy(joining));
}

void capture_and_replay(const GraphWork& work) {
    DRIVER_OK(cuStreamBeginCapture(work.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    DRIVER_OK(cuMemcpyHtoDAsync(work.device, work.host_in, GraphWork::kBytes, work.stream));
    DRIVER_OK(add_on(work, work.stream, 5));
    DRIVER_OK(add_on(work, work.stream, 50));
    DRIVER_OK(cuMemcpyDtoHAsync(work.host_out, work.device, GraphWork::kBytes, work.stream));
    CUgraph graph = nullptr;
    DRIVER_OK(cuStreamEndCapture(work.stream, &graph));
    check(node_count(graph) == 4, "two copies and two kernels captured: %zu nodes", node_count(graph));
    const CUgraphExec executable = instantiate(graph);
    int wrong = 0;
    for (unsigned round = 0; round < 5; round++) {
        work.fill_host(round * 1000);
        DRIVER_OK(cuGraphLaunch(executable, work.stream));
        DRIVER_OK(cuStreamSynchronize(work.stream));
        wrong += !work.host_holds(round * 1000 + 55);
    }
    check(wrong == 0, "5 launches with new input each: %d wrong", wrong);
    DRIVER_OK(cuGraphExecDestroy(executable));
    DRIVER_OK(cuGraphDestroy(graph));
    work.fill_host(1);
    DRIVER_OK(cuMemcpyHtoDAsync(work.device, work.host_in, GraphWork::kBytes, work.stream));
    DRIVER_OK(add_on(work, work.stream, 1));
    check(work.device_holds(2), "the stream works as before the capture");
}

void capture_two_streams(const GraphWork& work) {
    CUstream other = nullptr;
    CUevent fork = nullptr, join = nullptr;
    CUdeviceptr second = 0;
    DRIVER_OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    DRIVER_OK(cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING));
    DRIVER_OK(cuEventCreate(&join, CU_EVENT_DISABLE_TIMING));
    DRIVER_OK(cuMemAlloc(&second, GraphWork::kBytes));
    DRIVER_OK(cuMemsetD32(second, 3, GraphWork::kWords));
    DRIVER_OK(cuCtxSynchronize());
    DRIVER_OK(cuStreamBeginCapture(work.stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    DRIVER_OK(cuMemsetD32Async(work.device, 1, GraphWork::kWords, work.stream));
    DRIVER_OK(cuEventRecord(fork, work.stream));
    DRIVER_OK(cuStreamWaitEvent(other, fork, 0));
    check(status_of(other) == CU_STREAM_CAPTURE_STATUS_ACTIVE, "a stream that waits for a captured event captures too");
    DRIVER_OK(
        launch(work.add, GraphWork::kBlocks, GraphWork::kThreads, other, second, unsigned{GraphWork::kWords}, 4u));
    DRIVER_OK(cuEventRecord(join, other));
    DRIVER_OK(add_on(work, work.stream, 10));
    DRIVER_OK(cuStreamWaitEvent(work.stream, join, 0));
    DRIVER_OK(cuMemcpyDtoDAsync(work.device, second, GraphWork::kBytes / 2, work.stream));
    CUgraph graph = nullptr;
    DRIVER_OK(cuStreamEndCapture(work.stream, &graph));
    check(status_of(other) == CU_STREAM_CAPTURE_STATUS_NONE, "and stops with it");
    size_t edges = 0;
    DRIVER_OK(cuGraphGetEdges(graph, nullptr, nullptr, nullptr, &edges));
    check(node_count(graph) == 4 && edges == 4, "fork and join: %zu nodes, %zu edges", node_count(graph), edges);
    const CUgraphExec executable = instantiate(graph);
    for (int i = 0; i < 2; i++) {
        DRIVER_OK(cuGraphLaunch(executable, work.stream));
    }
    DRIVER_OK(cuStreamSynchronize(work.stream));
    std::vector<unsigned> back(GraphWork::kWords);
    DRIVER_OK(cuMemcpyDtoH(back.data(), work.device, GraphWork::kBytes));
    check(back.front() == 11 && back.back() == 11, "two launches of it (%u, %u)", back.front(), back.back());
    DRIVER_OK(cuGraphExecDestroy(executable));
    DRIVER_OK(cuGraphDestroy(graph));
    DRIVER_OK(cuMemFree(second));
    DRIVER_OK(cuEventDestroy(fork));
    DRIVER_OK(cuEventDestroy(join));
    DRIVER_OK(cuStreamDestroy(other));
}

void capture_information(const GraphWork& work) {
    check(status_of(work.stream) == CU_STREAM_CAPTURE_STATUS_NONE, "no capture to begin with");
    DRIVER_OK(cuStreamBeginCapture(work.stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    check(status_of(work.stream) == CU_STREAM_CAPTURE_STATUS_ACTIVE, "a capture is on");
    check(status_of(CU_STREAM_PER_THREAD) == CU_STREAM_CAPTURE_STATUS_NONE, "in that stream alone");
    DRIVER_OK(add_on(work, work.stream, 1));
    CUstreamCaptureStatus status{};
    cuuint64_t id = 0, second_id = 0;
    CUgraph graph = nullptr, ended = nullptr;
    const CUgraphNode* dependencies = nullptr;
    const CUgraphEdgeData* edges = nullptr;
    size_t count = 99;
    DRIVER_OK(cuStreamGetCaptureInfo(work.stream, &status, &id, &graph, &dependencies, &edges, &count));
    check(status == CU_STREAM_CAPTURE_STATUS_ACTIVE && id != 0 && graph != nullptr && count == 1,
          "information: id %llu, %zu node to go on from", static_cast<unsigned long long>(id), count);
    CUgraphNodeType type{};
    if (count == 1 && dependencies != nullptr) {
        DRIVER_OK(cuGraphNodeGetType(dependencies[0], &type));
        check(type == CU_GRAPH_NODE_TYPE_KERNEL, "which is the kernel's");
    }
    DRIVER_OK(cuStreamEndCapture(work.stream, &ended));
    DRIVER_OK(cuGraphDestroy(ended));
    DRIVER_OK(cuStreamBeginCapture(work.stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    DRIVER_OK(cuStreamGetCaptureInfo(work.stream, &status, &second_id, nullptr, nullptr, nullptr, nullptr));
    check(second_id != id, "another capture has another id");
    DRIVER_OK(cuStreamEndCapture(work.stream, &ended));
    check(ended != nullptr && node_count(ended) == 0, "a capture of nothing");
    DRIVER_OK(cuGraphDestroy(ended));
}

void capture_rules(const GraphWork& work, const Device& device) {
    const CUresult unsupported = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    during_capture(work, CU_STREAM_CAPTURE_MODE_GLOBAL, "global: an allocation", unsupported, false, allocate_and_free);
    during_capture(work, CU_STREAM_CAPTURE_MODE_GLOBAL, "global: an allocation by another thread", unsupported, false,
                   [&] { return in_other_thread(device, allocate_and_free); });
    during_capture(work, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, "thread-local: an allocation", unsupported, false,
                   allocate_and_free);
    during_capture(work, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, "thread-local: an allocation by another thread",
                   CUDA_SUCCESS, true, [&] { return in_other_thread(device, allocate_and_free); });
    during_capture(work, CU_STREAM_CAPTURE_MODE_RELAXED, "relaxed: an allocation", CUDA_SUCCESS, true,
                   allocate_and_free);
    during_capture(work, CU_STREAM_CAPTURE_MODE_GLOBAL, "global, relaxed for this thread: an allocation", CUDA_SUCCESS,
                   true, [] {
                       CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
                       DRIVER_OK(cuThreadExchangeStreamCaptureMode(&mode));
                       const CUresult result = allocate_and_free();
                       DRIVER_OK(cuThreadExchangeStreamCaptureMode(&mode));
                       check(mode == CU_STREAM_CAPTURE_MODE_RELAXED, "exchanging returns the thread's former mode");
                       return result;
                   });
    during_capture(work, CU_STREAM_CAPTURE_MODE_RELAXED, "a query of the capturing stream", unsupported, false,
                   [&] { return cuStreamQuery(work.stream); });
    during_capture(work, CU_STREAM_CAPTURE_MODE_RELAXED, "waiting for the capturing stream", unsupported, false,
                   [&] { return cuStreamSynchronize(work.stream); });
    during_capture(work, CU_STREAM_CAPTURE_MODE_RELAXED, "waiting for the context", unsupported, false,
                   [] { return cuCtxSynchronize(); });
}

namespace {

// What invalidates a capture, and what a stream answers whose capture is invalid.
void invalid_captures(const GraphWork& work, CUstream other) {
    CUgraph graph = nullptr;
    CUevent fresh = nullptr, event = nullptr;
    DRIVER_OK(cuEventCreate(&fresh, CU_EVENT_DISABLE_TIMING));
    DRIVER_OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    const auto begin = [&] { DRIVER_OK(cuStreamBeginCapture(work.stream, CU_STREAM_CAPTURE_MODE_RELAXED)); };
    const auto end = [&](CUresult want, const char* what) {
        check_result(cuStreamEndCapture(work.stream, &graph), want, what);
        if (graph != nullptr) {
            DRIVER_OK(cuGraphDestroy(graph));
        }
    };
    begin();
    check_result(cuStreamWaitEvent(work.stream, fresh, 0), CUDA_SUCCESS, "waiting for an event without a record");
    end(CUDA_SUCCESS, "is possible in a capture");

    begin();
    DRIVER_OK(cuEventRecord(event, work.stream));
    DRIVER_OK(cuStreamWaitEvent(other, event, 0));
    check_result(cuStreamEndCapture(other, &graph), CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "ended by a joined stream");
    check(status_of(work.stream) == CU_STREAM_CAPTURE_STATUS_INVALIDATED, "the capture is invalid");
    end(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "which comes before that the stream was not joined");

    begin();
    check_result(cuStreamSynchronize(work.stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "a wait");
    check_result(cuStreamWaitEvent(work.stream, fresh, 0), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
                 "an event, when the capture is invalid");
    check_result(cuStreamUpdateCaptureDependencies(work.stream, nullptr, nullptr, 0, 1),
                 CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "other dependencies then");
    check_result(cuMemFreeAsync(work.device, work.stream), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "a free then");
    end(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "the end of the invalid capture");

    check_result(cuEventRecordWithFlags(event, work.stream, CU_EVENT_RECORD_EXTERNAL), CUDA_ERROR_ILLEGAL_STATE,
                 "a record for a graph outside of a capture");
    check_result(cuStreamWaitEvent(work.stream, fresh, CU_EVENT_WAIT_EXTERNAL), CUDA_ERROR_ILLEGAL_STATE,
                 "such a wait outside of a capture");
    check_result(cuStreamWaitEvent(work.stream, event, CU_EVENT_WAIT_EXTERNAL), CUDA_ERROR_INVALID_VALUE,
                 "such a wait for an event of a past capture");
    DRIVER_OK(cuEventDestroy(event));
    DRIVER_OK(cuEventDestroy(fresh));
}

}  // namespace

void capture_mistakes(const GraphWork& work, const Device& device) {
    CUgraph graph = nullptr;
    CUstream blocking = nullptr, other = nullptr;
    CUevent event = nullptr;
    DRIVER_OK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    DRIVER_OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    DRIVER_OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    DRIVER_OK(cuCtxSynchronize());

    DRIVER_OK(cuStreamBeginCapture(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
    check_result(add_on(work, nullptr, 1), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
                 "the legacy stream while a blocking stream captures");
    check_result(cuStreamEndCapture(blocking, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "ends that capture");
    check(cuStreamBeginCapture(nullptr, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
          "the legacy stream cannot be captured");

    DRIVER_OK(cuStreamBeginCapture(work.stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    check(cuStreamBeginCapture(work.stream, CU_STREAM_CAPTURE_MODE_RELAXED) != CUDA_SUCCESS,
          "a second capture of a stream");
    cuStreamEndCapture(work.stream, &graph);

    DRIVER_OK(cuStreamBeginCapture(work.stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    DRIVER_OK(cuEventRecord(event, work.stream));
    DRIVER_OK(cuStreamWaitEvent(other, event, 0));
    DRIVER_OK(add_on(work, other, 1));
    check_result(cuStreamEndCapture(work.stream, &graph), CUDA_ERROR_STREAM_CAPTURE_UNJOINED,
                 "a stream that was never joined");
    check(status_of(other) == CU_STREAM_CAPTURE_STATUS_NONE, "does not capture any more");

    DRIVER_OK(cuStreamBeginCapture(work.stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    DRIVER_OK(cuEventRecord(event, work.stream));
    check_result(cuEventSynchronize(event), CUDA_ERROR_CAPTURED_EVENT, "waiting for a captured event");
    check_result(cuEventQuery(event), CUDA_ERROR_INVALID_VALUE, "and a query of it in the then invalid capture");
    cuStreamEndCapture(work.stream, &graph);
    events_of_the_past(work, event, other);

    DRIVER_OK(cuStreamBeginCapture(work.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    const CUresult result = in_other_thread(device, [&] {
        CUgraph unused = nullptr;
        return cuStreamEndCapture(work.stream, &unused);
    });
    check_result(result, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, "a thread-local capture ended by another thread");
    check(status_of(work.stream) == CU_STREAM_CAPTURE_STATUS_NONE, "has ended");
    check_result(cuStreamEndCapture(work.stream, &graph), CUDA_ERROR_ILLEGAL_STATE, "its own thread cannot end it");
    invalid_captures(work, other);
    check(status_of(work.stream) == CU_STREAM_CAPTURE_STATUS_NONE, "no capture is left");
    DRIVER_OK(add_on(work, work.stream, 1));
    check_result(cuStreamSynchronize(work.stream), CUDA_SUCCESS, "and the stream works");
    DRIVER_OK(cuEventDestroy(event));
    DRIVER_OK(cuStreamDestroy(blocking));
    DRIVER_OK(cuStreamDestroy(other));
}

}  // namespace gpupool::programs
