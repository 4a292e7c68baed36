// Graphs: what a launch does, in which order, and how an executable graph changes.
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <thread>

#include "tests/support/event_counter.h"
#include "tests/support/waiting.h"
#include "tests/unit/softgpu/driver.h"

namespace gpupool::softgpu_test {
namespace {

class GraphTest : public DriverTest {
  protected:
    void SetUp() override {
        DriverTest::SetUp();
        OK(CALL(cuGraphCreate)(&graph_, 0));
        OK(CALL(cuStreamCreate)(&stream_, CU_STREAM_NON_BLOCKING));
        log_ = upload(std::vector<int>(64));
        position_ = upload(std::vector<int>{0});
    }

    // A kernel that appends `value` to the log. It is correct only if such kernels run one after the other.
    CUDA_KERNEL_NODE_PARAMS appending(int value) {
        value_ = value;
        params_[0] = &log_;
        params_[1] = &position_;
        params_[2] = &value_;
        CUDA_KERNEL_NODE_PARAMS result{};
        result.func = function("append");
        result.gridDimX = result.gridDimY = result.gridDimZ = 1;
        result.blockDimX = result.blockDimY = result.blockDimZ = 1;
        result.kernelParams = params_;
        return result;
    }
    CUgraphNode append(int value, std::vector<CUgraphNode> after) {
        CUgraphNode node = nullptr;
        const auto params = appending(value);
        EXPECT_EQ(CUDA_SUCCESS, CALL(cuGraphAddKernelNode_v2)(&node, graph_, after.data(), after.size(), &params));
        return node;
    }
    CUgraphExec instantiate() {
        CUgraphExec result = nullptr;
        EXPECT_EQ(CUDA_SUCCESS, CALL(cuGraphInstantiateWithFlags)(&result, graph_, 0));
        return result;
    }
    void run(CUgraphExec executable) {
        OK(CALL(cuGraphLaunch)(executable, stream_));
        OK(CALL(cuStreamSynchronize)(stream_));
    }
    std::vector<int> logged() {
        const int count = download<int>(position_, 1)[0];
        return download<int>(log_, static_cast<std::size_t>(count));
    }
    CUdeviceptr word(int value) { return upload(std::vector<int>{value}); }
    CUgraphNode operation(CUstreamBatchMemOpType type, CUdeviceptr address, unsigned value,
                          std::vector<CUgraphNode> after = {}) {
        CUstreamBatchMemOpParams one{};
        one.operation = type;
        one.waitValue.address = address;
        one.waitValue.value = value;
        if (type == CU_STREAM_MEM_OP_WAIT_VALUE_32) {
            one.waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
        }
        CUDA_BATCH_MEM_OP_NODE_PARAMS batch{context_, 1, &one, 0};
        CUgraphNode node = nullptr;
        EXPECT_EQ(CUDA_SUCCESS, CALL(cuGraphAddBatchMemOpNode)(&node, graph_, after.data(), after.size(), &batch));
        return node;
    }

    CUgraph graph_ = nullptr;
    CUstream stream_ = nullptr;
    CUdeviceptr log_ = 0, position_ = 0;
    int value_ = 0;
    void* params_[3] = {};
};

TEST_F(GraphTest, NodesRunInTheOrderOfTheirEdges) {
    // Created in the opposite order, so that execution in creation order would be wrong.
    const CUgraphNode third = append(3, {}), second = append(2, {}), first = append(1, {});
    const CUgraphNode from[] = {first, second}, to[] = {second, third};
    OK(CALL(cuGraphAddDependencies_v2)(graph_, from, to, nullptr, 2));
    const CUgraphExec executable = instantiate();
    run(executable);
    run(executable);
    EXPECT_EQ((std::vector<int>{1, 2, 3, 1, 2, 3}), logged());
}

TEST_F(GraphTest, LaunchIsAsynchronousAndInStreamOrder) {
    const CUdeviceptr flag = word(0);
    append(2, {operation(CU_STREAM_MEM_OP_WAIT_VALUE_32, flag, 1)});
    const CUgraphExec executable = instantiate();
    OK(launch("append", {1}, {1}, 0, stream_, log_, position_, 1));
    OK(CALL(cuGraphLaunch)(executable, stream_));
    OK(launch("append", {1}, {1}, 0, stream_, log_, position_, 3));
    EXPECT_EQ(CUDA_ERROR_NOT_READY, CALL(cuStreamQuery)(stream_));
    // The launch needs neither any more.
    OK(CALL(cuGraphExecDestroy)(executable));
    OK(CALL(cuGraphDestroy)(graph_));
    OK(CALL(cuStreamWriteValue32_v2)(CU_STREAM_PER_THREAD, flag, 1, 0));
    OK(CALL(cuStreamSynchronize)(stream_));
    EXPECT_EQ((std::vector<int>{1, 2, 3}), logged());
}

// If they ran one after the other, the first would wait for ever.
TEST_F(GraphTest, BranchesRunConcurrently) {
    const CUdeviceptr there = word(0), back = word(0);
    const CUgraphNode a = operation(CU_STREAM_MEM_OP_WRITE_VALUE_32, there, 1);
    operation(CU_STREAM_MEM_OP_WAIT_VALUE_32, back, 1, {a});
    const CUgraphNode b = operation(CU_STREAM_MEM_OP_WAIT_VALUE_32, there, 1);
    operation(CU_STREAM_MEM_OP_WRITE_VALUE_32, back, 1, {b});
    run(instantiate());
    EXPECT_EQ(1, download<int>(back, 1)[0]);
}

TEST_F(GraphTest, LaunchesOfOneExecutableGraphDoNotOverlap) {
    test::EventCounter go;
    const CUDA_HOST_NODE_PARAMS wait{
        [](void* event) { EXPECT_TRUE(static_cast<test::EventCounter*>(event)->wait_for(1)); }, &go};
    const CUgraphNode first = append(1, {});
    CUgraphNode second = nullptr;
    OK(CALL(cuGraphAddHostNode)(&second, graph_, &first, 1, &wait));
    const CUgraphExec executable = instantiate();
    CUstream other = nullptr;
    OK(CALL(cuStreamCreate)(&other, CU_STREAM_NON_BLOCKING));
    OK(CALL(cuGraphLaunch)(executable, stream_));
    OK(CALL(cuGraphLaunch)(executable, other));
    EXPECT_TRUE(test::wait_until_others_sleep());
    int begun = 0;
    CUstream reading = nullptr;
    OK(CALL(cuStreamCreate)(&reading, CU_STREAM_NON_BLOCKING));
    OK(CALL(cuMemcpyDtoHAsync_v2)(&begun, position_, sizeof begun, reading));
    OK(CALL(cuStreamSynchronize)(reading));
    go.add();
    OK(CALL(cuStreamSynchronize)(stream_));
    OK(CALL(cuStreamSynchronize)(other));
    EXPECT_EQ(1, begun);
    EXPECT_EQ((std::vector<int>{1, 1}), logged());
}

TEST_F(GraphTest, CycleCannotBeInstantiated) {
    const CUgraphNode a = append(1, {}), b = append(2, {a});
    EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, CALL(cuGraphAddDependencies_v2)(graph_, &a, &a, nullptr, 1));
    EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, CALL(cuGraphAddDependencies_v2)(graph_, &a, &b, nullptr, 1)) << "again";
    OK(CALL(cuGraphAddDependencies_v2)(graph_, &b, &a, nullptr, 1));
    CUgraphExec executable = nullptr;
    CUDA_GRAPH_INSTANTIATE_PARAMS params{};
    EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, CALL(cuGraphInstantiateWithParams)(&executable, graph_, &params));
    EXPECT_EQ(CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE, params.result_out);
    OK(CALL(cuGraphRemoveDependencies_v2)(graph_, &b, &a, nullptr, 1));
    OK(CALL(cuGraphInstantiateWithFlags)(&executable, graph_, 0));
}

TEST_F(GraphTest, ChildIsACopyThatRunsInItsNodesOrder) {
    append(2, {append(1, {})});
    CUgraph outer = nullptr;
    OK(CALL(cuGraphCreate)(&outer, 0));
    std::swap(outer, graph_);  // `outer` is the child now
    const CUgraphNode before = append(0, {});
    CUgraphNode child = nullptr;
    OK(CALL(cuGraphAddChildGraphNode)(&child, graph_, &before, 1, outer));
    append(9, {child});
    OK(CALL(cuGraphDestroy)(outer));
    CUgraph inner = nullptr;
    OK(CALL(cuGraphChildGraphNodeGetGraph)(child, &inner));
    size_t count = 2;
    CUgraphNode nodes[2] = {};
    OK(CALL(cuGraphGetNodes)(inner, nodes, &count));
    const CUgraphExec executable = instantiate();
    const auto changed = appending(7);
    OK(CALL(cuGraphExecKernelNodeSetParams_v2)(executable, nodes[1], &changed));
    run(executable);
    EXPECT_EQ((std::vector<int>{0, 1, 7, 9}), logged());
}

TEST_F(GraphTest, UpdateIsAtomic) {
    append(2, {append(1, {})});
    const CUgraphExec executable = instantiate();
    CUgraph other = nullptr;
    OK(CALL(cuGraphCreate)(&other, 0));
    std::swap(other, graph_);
    const CUgraphNode first = append(10, {});
    const CUgraphNode second = append(20, {});
    CUgraphExecUpdateResultInfo info{};
    EXPECT_EQ(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, CALL(cuGraphExecUpdate_v2)(executable, graph_, &info));
    EXPECT_EQ(CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, info.result);
    EXPECT_EQ(second, info.errorNode);
    run(executable);
    OK(CALL(cuGraphAddDependencies_v2)(graph_, &first, &second, nullptr, 1));
    OK(CALL(cuGraphExecUpdate_v2)(executable, graph_, &info));
    run(executable);
    EXPECT_EQ((std::vector<int>{1, 2, 10, 20}), logged());
}

TEST_F(GraphTest, GraphMemoryLivesFromItsNodeToItsFree) {
    CUDA_MEM_ALLOC_NODE_PARAMS allocation{};
    allocation.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    allocation.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    allocation.bytesize = 1 << 20;
    CUgraphNode allocated = nullptr, filled = nullptr;
    OK(CALL(cuGraphAddMemAllocNode)(&allocated, graph_, nullptr, 0, &allocation));
    const CUDA_MEMSET_NODE_PARAMS fill{allocation.dptr, 0, 77, 4, (1 << 20) / 4, 1};
    OK(CALL(cuGraphAddMemsetNode)(&filled, graph_, &allocated, 1, &fill, context_));
    size_t before = 0, held = 0, after = 0, total = 0;
    OK(CALL(cuDeviceGraphMemTrim)(0));  // of other cases in this process
    OK(CALL(cuMemGetInfo_v2)(&before, &total));
    const CUgraphExec executable = instantiate();
    int value = 0;
    EXPECT_NE(CUDA_SUCCESS, CALL(cuMemFree_v2)(allocation.dptr)) << "it is not there yet";
    run(executable);
    OK(CALL(cuMemcpyDtoH_v2)(&value, allocation.dptr + (1 << 20) - 4, 4));
    EXPECT_EQ(77, value);
    OK(CALL(cuMemGetInfo_v2)(&held, &total));
    EXPECT_EQ(std::size_t{1} << 20, before - held);
    EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, CALL(cuGraphLaunch)(executable, stream_)) << "it is still held";
    OK(CALL(cuMemFreeAsync)(allocation.dptr, stream_));
    OK(CALL(cuGraphLaunch)(executable, stream_));
    OK(CALL(cuMemFreeAsync)(allocation.dptr, stream_)) << "launched, whether it ran yet or not";
    OK(CALL(cuStreamSynchronize)(stream_));
    OK(CALL(cuMemGetInfo_v2)(&after, &total));
    EXPECT_EQ(held, after) << "kept for the next launch";
    cuuint64_t reserved = 0;
    OK(CALL(cuDeviceGetGraphMemAttribute)(0, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &reserved));
    EXPECT_EQ(std::size_t{1} << 20, reserved);
    OK(CALL(cuDeviceGraphMemTrim)(0));
    OK(CALL(cuMemGetInfo_v2)(&after, &total));
    EXPECT_EQ(before, after);
}

TEST_F(GraphTest, EventRecordedByAGraphCompletesWithTheLaunch) {
    const CUdeviceptr flag = word(0);
    CUevent event = nullptr;
    OK(CALL(cuEventCreate)(&event, CU_EVENT_DISABLE_TIMING));
    const CUgraphNode waits = operation(CU_STREAM_MEM_OP_WAIT_VALUE_32, flag, 1);
    CUgraphNode record = nullptr;
    OK(CALL(cuGraphAddEventRecordNode)(&record, graph_, &waits, 1, event));
    OK(CALL(cuGraphLaunch)(instantiate(), stream_));
    EXPECT_EQ(CUDA_ERROR_NOT_READY, CALL(cuEventQuery)(event));
    OK(CALL(cuStreamWriteValue32_v2)(CU_STREAM_PER_THREAD, flag, 1, 0));
    OK(CALL(cuEventSynchronize)(event));
}

TEST_F(GraphTest, FaultEndsTheLaunchAndReachesItsEvents) {
    CUevent event = nullptr;
    OK(CALL(cuEventCreate)(&event, CU_EVENT_DISABLE_TIMING));
    CUdeviceptr nowhere = 0x1000;
    void* params[] = {&nowhere};
    CUDA_KERNEL_NODE_PARAMS bad = appending(0);
    bad.func = function("store_at");
    bad.kernelParams = params;
    CUgraphNode node = nullptr, record = nullptr;
    OK(CALL(cuGraphAddKernelNode_v2)(&node, graph_, nullptr, 0, &bad));
    OK(CALL(cuGraphAddEventRecordNode)(&record, graph_, &node, 1, event));
    OK(CALL(cuGraphLaunch)(instantiate(), stream_));
    EXPECT_EQ(CUDA_ERROR_ILLEGAL_ADDRESS, CALL(cuEventSynchronize)(event));
    EXPECT_EQ(CUDA_ERROR_ILLEGAL_ADDRESS, CALL(cuStreamSynchronize)(stream_));
}

TEST_F(GraphTest, IsPrintedAsDot) {
    append(2, {append(1, {})});
    char path[] = "/tmp/gpupool-graph-XXXXXX";
    close(mkstemp(path));
    OK(CALL(cuGraphDebugDotPrint)(graph_, path, 0));
    const std::string text = file_bytes(path);
    unlink(path);
    EXPECT_NE(std::string::npos, text.find("append<<<(1,1,1),(1,1,1),0>>>")) << text;
    EXPECT_NE(std::string::npos, text.find(" -> ")) << text;
    EXPECT_EQ(CUDA_ERROR_OPERATING_SYSTEM, CALL(cuGraphDebugDotPrint)(graph_, "/nowhere/at/all.dot", 0));
}

TEST_F(GraphTest, InvalidHandlesAndForeignNodesAreRefused) {
    const CUgraphNode mine = append(1, {});
    CUgraph other = nullptr;
    CUgraphNode theirs = nullptr, none = nullptr;
    OK(CALL(cuGraphCreate)(&other, 0));
    OK(CALL(cuGraphAddEmptyNode)(&theirs, other, nullptr, 0));
    EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, CALL(cuGraphAddEmptyNode)(&none, graph_, &theirs, 1));
    EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, CALL(cuGraphAddEmptyNode)(&none, graph_, nullptr, 1));
    const CUgraphExec executable = instantiate();
    EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, CALL(cuGraphNodeSetEnabled)(executable, theirs, 0));
    OK(CALL(cuGraphDestroy)(graph_));
    CUgraphNodeType type;
    EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, CALL(cuGraphNodeGetType)(mine, &type)) << "it went with its graph";
    EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, CALL(cuGraphDestroy)(graph_));
    OK(CALL(cuGraphExecDestroy)(executable));
    EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, CALL(cuGraphLaunch)(executable, stream_));
}

}  // namespace
}  // namespace gpupool::softgpu_test
