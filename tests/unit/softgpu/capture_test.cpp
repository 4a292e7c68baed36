// Stream capture: what becomes of submitted work, how a capture spreads, and what it forbids.
#include <thread>

#include "tests/unit/softgpu/driver.h"

namespace gpupool::softgpu_test {
namespace {

constexpr CUresult kUnsupported = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
constexpr CUresult kInvalidated = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;

class CaptureTest : public DriverTest {
  protected:
    void SetUp() override {
        DriverTest::SetUp();
        for (CUstream* stream : {&stream_, &other_}) {
            OK(CALL(cuStreamCreate)(stream, CU_STREAM_NON_BLOCKING));
        }
        for (CUevent* event : {&event_, &join_}) {
            OK(CALL(cuEventCreate)(event, CU_EVENT_DISABLE_TIMING));
        }
        log_ = upload(std::vector<int>(64));
        position_ = upload(std::vector<int>{0});
        OK(CALL(cuCtxSynchronize)());
    }

    void begin(CUstream stream, CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED) {
        OK(CALL(cuStreamBeginCapture_v2)(stream, mode));
    }
    CUresult append(CUstream stream, int value) {
        return launch("append", {1}, {1}, 0, stream, log_, position_, value);
    }
    CUresult end(CUstream stream, CUgraph* graph = nullptr) {
        CUgraph ended = nullptr;
        const CUresult result = CALL(cuStreamEndCapture)(stream, graph != nullptr ? graph : &ended);
        if (ended != nullptr) {
            CALL(cuGraphDestroy)(ended);
        }
        return result;
    }
    CUstreamCaptureStatus status(CUstream stream) {
        CUstreamCaptureStatus result{};
        EXPECT_EQ(CUDA_SUCCESS, CALL(cuStreamIsCapturing)(stream, &result));
        return result;
    }
    std::vector<CUgraphNode> nodes(CUgraph graph) {
        size_t count = 32;
        std::vector<CUgraphNode> result(count);
        EXPECT_EQ(CUDA_SUCCESS, CALL(cuGraphGetNodes)(graph, result.data(), &count));
        result.resize(count);
        return result;
    }
    std::vector<int> types(CUgraph graph) {
        std::vector<int> result;
        for (const CUgraphNode node : nodes(graph)) {
            CUgraphNodeType type{};
            EXPECT_EQ(CUDA_SUCCESS, CALL(cuGraphNodeGetType)(node, &type));
            result.push_back(type);
        }
        return result;
    }
    std::vector<int> logged() {
        const int count = download<int>(position_, 1)[0];
        return download<int>(log_, static_cast<std::size_t>(count));
    }
    template <class Call>
    CUresult in_other_thread(Call call) {
        CUresult result = CUDA_ERROR_UNKNOWN;
        std::thread([&] {
            CALL(cuCtxSetCurrent)(context_);
            result = call();
        }).join();
        return result;
    }
    static CUresult allocate() {
        CUdeviceptr block = 0;
        const CUresult result = CALL(cuMemAlloc_v2)(&block, 64);
        return result == CUDA_SUCCESS ? CALL(cuMemFree_v2)(block) : result;
    }

    CUstream stream_ = nullptr, other_ = nullptr;
    CUevent event_ = nullptr, join_ = nullptr;
    CUdeviceptr log_ = 0, position_ = 0;
};

TEST_F(CaptureTest, EverySubmissionBecomesANodeAndNothingRuns) {
    std::vector<int> host(4);
    CUdeviceptr allocated = 0;
    begin(stream_);
    OK(append(stream_, 1));
    OK(CALL(cuMemcpyDtoHAsync_v2)(host.data(), log_, 16, stream_));
    OK(CALL(cuMemsetD32Async)(log_, 5, 4, stream_));
    OK(CALL(cuLaunchHostFunc)(
        stream_, [](void*) {}, nullptr));
    OK(CALL(cuStreamWriteValue32_v2)(stream_, log_, 1, 0));
    OK(CALL(cuMemAllocAsync)(&allocated, 64, stream_));
    OK(CALL(cuMemsetD8Async)(allocated, 1, 64, stream_));
    OK(CALL(cuMemFreeAsync)(allocated, stream_));
    OK(CALL(cuEventRecordWithFlags)(event_, stream_, CU_EVENT_RECORD_EXTERNAL));
    OK(CALL(cuStreamWaitEvent)(stream_, event_, CU_EVENT_WAIT_EXTERNAL));
    CUgraph graph = nullptr;
    OK(end(stream_, &graph));
    EXPECT_EQ((std::vector<int>{CU_GRAPH_NODE_TYPE_KERNEL, CU_GRAPH_NODE_TYPE_MEMCPY, CU_GRAPH_NODE_TYPE_MEMSET,
                                CU_GRAPH_NODE_TYPE_HOST, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, CU_GRAPH_NODE_TYPE_MEM_ALLOC,
                                CU_GRAPH_NODE_TYPE_MEMSET, CU_GRAPH_NODE_TYPE_MEM_FREE, CU_GRAPH_NODE_TYPE_EVENT_RECORD,
                                CU_GRAPH_NODE_TYPE_WAIT_EVENT}),
              types(graph));
    size_t edges = 0;
    OK(CALL(cuGraphGetEdges_v2)(graph, nullptr, nullptr, nullptr, &edges));
    EXPECT_EQ(9U, edges) << "one behind the other";
    EXPECT_TRUE(logged().empty());
    CUgraphExec executable = nullptr;
    OK(CALL(cuGraphInstantiateWithFlags)(&executable, graph, 0));
    OK(CALL(cuGraphLaunch)(executable, stream_));
    OK(CALL(cuStreamSynchronize)(stream_));
    EXPECT_EQ(1, host[0]);
    EXPECT_EQ((std::vector<int>{1}), logged());
}

TEST_F(CaptureTest, SpreadsThroughEventsAndMustRejoin) {
    begin(stream_);
    OK(append(stream_, 1));
    OK(CALL(cuEventRecord)(event_, stream_));
    OK(CALL(cuStreamWaitEvent)(other_, event_, 0));
    EXPECT_EQ(CU_STREAM_CAPTURE_STATUS_ACTIVE, status(other_));
    OK(append(other_, 2));
    OK(CALL(cuEventRecord)(join_, other_));
    OK(CALL(cuStreamWaitEvent)(stream_, join_, 0));
    OK(append(stream_, 3));
    CUgraph graph = nullptr;
    OK(end(stream_, &graph));
    EXPECT_EQ(CU_STREAM_CAPTURE_STATUS_NONE, status(other_));
    size_t count = 2;
    CUgraphNode before[2] = {};
    OK(CALL(cuGraphNodeGetDependencies_v2)(nodes(graph).back(), before, nullptr, &count));
    EXPECT_EQ(2U, count) << "the last kernel depends on both streams";

    begin(stream_);
    OK(CALL(cuEventRecord)(event_, stream_));
    OK(CALL(cuStreamWaitEvent)(other_, event_, 0));
    OK(append(other_, 4));
    EXPECT_EQ(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, end(stream_));
    EXPECT_EQ(CU_STREAM_CAPTURE_STATUS_NONE, status(other_));
}

TEST_F(CaptureTest, ContinuesAnExistingGraph) {
    CUgraph graph = nullptr, ended = nullptr;
    CUgraphNode root = nullptr;
    OK(CALL(cuGraphCreate)(&graph, 0));
    OK(CALL(cuGraphAddEmptyNode)(&root, graph, nullptr, 0));
    OK(CALL(cuStreamBeginCaptureToGraph)(stream_, graph, &root, nullptr, 1, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(append(stream_, 1));
    EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, CALL(cuGraphDestroy)(graph)) << "a capture writes to it";
    OK(end(stream_, &ended));
    EXPECT_EQ(graph, ended);
    size_t count = 0;
    OK(CALL(cuGraphNodeGetDependentNodes_v2)(root, nullptr, nullptr, &count));
    EXPECT_EQ(1U, count);
}

TEST_F(CaptureTest, ModesForbidUnsafeCalls) {
    begin(stream_, CU_STREAM_CAPTURE_MODE_GLOBAL);
    EXPECT_EQ(kUnsupported, in_other_thread(allocate));
    EXPECT_EQ(kInvalidated, end(stream_));
    begin(stream_, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    EXPECT_EQ(CUDA_SUCCESS, in_other_thread(allocate));
    OK(append(stream_, 1));
    EXPECT_EQ(kUnsupported, allocate());
    EXPECT_EQ(kInvalidated, append(stream_, 1));
    EXPECT_EQ(kInvalidated, end(stream_));
    begin(stream_, CU_STREAM_CAPTURE_MODE_GLOBAL);
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    OK(CALL(cuThreadExchangeStreamCaptureMode)(&mode));
    OK(allocate());
    OK(CALL(cuThreadExchangeStreamCaptureMode)(&mode));
    OK(end(stream_));
}

TEST_F(CaptureTest, EndsInTheWrongThreadWithoutAGraph) {
    for (const auto mode : {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL}) {
        begin(stream_, mode);
        EXPECT_EQ(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, in_other_thread([&] { return end(stream_); }));
        EXPECT_EQ(CUDA_ERROR_ILLEGAL_STATE, end(stream_));
        OK(append(stream_, 1));
    }
}

TEST_F(CaptureTest, WaitingForCapturedWorkIsRefusedInEveryMode) {
    begin(stream_);
    EXPECT_EQ(kUnsupported, CALL(cuStreamSynchronize)(stream_));
    EXPECT_EQ(kInvalidated, end(stream_));
    begin(stream_);
    EXPECT_EQ(kUnsupported, CALL(cuCtxSynchronize)());
    EXPECT_EQ(kInvalidated, end(stream_));
    begin(stream_);
    OK(CALL(cuEventRecord)(event_, stream_));
    EXPECT_EQ(CUDA_ERROR_CAPTURED_EVENT, CALL(cuEventQuery)(event_));
    EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, CALL(cuEventQuery)(event_)) << "its capture is invalid";
    EXPECT_EQ(kInvalidated, end(stream_));
    EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, CALL(cuEventQuery)(event_)) << "or over";
    OK(CALL(cuEventRecord)(event_, stream_));
    OK(CALL(cuEventSynchronize)(event_)) << "an ordinary recording makes it an ordinary event";
    EXPECT_EQ(CUDA_ERROR_ILLEGAL_STATE, end(stream_));
}

TEST_F(CaptureTest, CapturesDoNotMixWithEachOtherNorWithOtherWork) {
    begin(stream_);
    begin(other_);
    OK(CALL(cuEventRecord)(event_, stream_));
    EXPECT_EQ(CUDA_ERROR_STREAM_CAPTURE_MERGE, CALL(cuStreamWaitEvent)(other_, event_, 0));
    EXPECT_EQ(kInvalidated, end(stream_));
    EXPECT_EQ(kInvalidated, end(other_));
    OK(CALL(cuEventRecord)(event_, other_));
    begin(stream_);
    EXPECT_EQ(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, CALL(cuStreamWaitEvent)(stream_, event_, 0));
    EXPECT_EQ(kInvalidated, end(stream_));
}

TEST_F(CaptureTest, LegacyStreamsWorkInvalidatesABlockingCapture) {
    CUstream blocking = nullptr;
    OK(CALL(cuStreamCreate)(&blocking, CU_STREAM_DEFAULT));
    EXPECT_EQ(kUnsupported, CALL(cuStreamBeginCapture_v2)(nullptr, CU_STREAM_CAPTURE_MODE_RELAXED));
    begin(stream_);
    OK(append(nullptr, 1)) << "a non-blocking stream is not affected";
    OK(end(stream_));
    begin(blocking);
    CUstreamCaptureStatus unknown{};
    EXPECT_EQ(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, CALL(cuStreamIsCapturing)(nullptr, &unknown));
    EXPECT_EQ(CU_STREAM_CAPTURE_STATUS_ACTIVE, status(blocking)) << "the query does not invalidate the capture";
    EXPECT_EQ(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, append(nullptr, 2));
    EXPECT_EQ(kInvalidated, end(blocking));
    OK(append(nullptr, 3));
    EXPECT_EQ((std::vector<int>{1, 3}), logged());
}

// A program built for an older CUDA version passes that version's parameters.
TEST_F(CaptureTest, ProcAddressReturnsTheVersionsVariant) {
    const auto find = [](int version) {
        void* found = nullptr;
        EXPECT_EQ(CUDA_SUCCESS, CALL(cuGetProcAddress_v2)("cuStreamGetCaptureInfo", &found, version, 0, nullptr));
        return found;
    };
    EXPECT_EQ(entry_point("cuStreamGetCaptureInfo"), find(10010));
    EXPECT_EQ(entry_point("cuStreamGetCaptureInfo_v2"), find(12020));
    EXPECT_EQ(entry_point("cuStreamGetCaptureInfo_v3"), find(13000));
}

TEST_F(CaptureTest, MissingFunctionsHaveNoPerThreadVariant) {
    for (const cuuint64_t flags : {CU_GET_PROC_ADDRESS_DEFAULT, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM}) {
        void* found = nullptr;
        CUdriverProcAddressQueryResult status{};
        EXPECT_EQ(CUDA_SUCCESS, CALL(cuGetProcAddress_v2)("cuMemMapArrayAsync", &found, 13000, flags, &status));
        EXPECT_EQ(CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND, status);
        EXPECT_EQ(nullptr, found);
    }
}

TEST_F(CaptureTest, RejoinedStreamMayBeDestroyedBeforeTheEnd) {
    CUstream side = nullptr;
    CUevent back = nullptr;
    OK(CALL(cuStreamCreate)(&side, CU_STREAM_NON_BLOCKING));
    OK(CALL(cuEventCreate)(&back, CU_EVENT_DEFAULT));
    begin(stream_);
    OK(CALL(cuEventRecord)(event_, stream_));
    OK(CALL(cuStreamWaitEvent)(side, event_, 0));
    OK(CALL(cuLaunchHostFunc)(
        side, [](void*) {}, nullptr));
    OK(CALL(cuEventRecord)(back, side));
    OK(CALL(cuStreamWaitEvent)(stream_, back, 0));
    OK(CALL(cuStreamDestroy_v2)(side));
    CUgraph graph = nullptr;
    OK(CALL(cuStreamEndCapture)(stream_, &graph));
    size_t nodes = 0;
    OK(CALL(cuGraphGetNodes)(graph, nullptr, &nodes));
    EXPECT_EQ(1U, nodes);
    OK(CALL(cuGraphDestroy)(graph));
    OK(CALL(cuEventDestroy_v2)(back));
}

TEST_F(CaptureTest, EndsWithItsStreamAndWithItsContext) {
    OK(CALL(cuEventRecord)(event_, stream_));
    begin(stream_);
    OK(CALL(cuStreamDestroy_v2)(stream_));
    OK(allocate()) << "nothing captures any more";
    begin(other_, CU_STREAM_CAPTURE_MODE_GLOBAL);
    CUcontext below = nullptr;
    OK(CALL(cuCtxPopCurrent_v2)(&below));
    OK(CALL(cuCtxDestroy_v2)(below));
    OK(CALL(cuCtxCreate_v2)(&context_, 0, 0));
    OK(allocate());
}

}  // namespace
}  // namespace gpupool::softgpu_test
