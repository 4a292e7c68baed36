// Checks how graph node parameters from a hostile client are translated for the driver.
#include "server/worker/graphs/graph_params.h"

#include <gtest/gtest.h>

#include <cstring>

#include "server/worker/scheduling/scheduler.h"
#include "server/worker/session/objects.h"

namespace gpupool::test {
namespace {

using worker::NodeParameters;

class GraphParamsTest : public testing::Test {
  protected:
    GraphParamsTest() { handles.bind(function_, reinterpret_cast<CUfunction>(0xf00)); }

    CUresult read(NodeParameters& parameters) { return parameters.read(handles, objects, node, payload); }
    CUresult read() {
        NodeParameters parameters;
        return read(parameters);
    }
    void copy_with(CUmemorytype from, std::uint64_t source, CUmemorytype to, std::uint64_t destination) {
        node.type = CU_GRAPH_NODE_TYPE_MEMCPY;
        node.copy = {};
        node.copy.srcMemoryType = from;
        node.copy.dstMemoryType = to;
        node.copy.srcHost = reinterpret_cast<const void*>(source);
        node.copy.srcDevice = source;
        node.copy.dstHost = reinterpret_cast<void*>(destination);
        node.copy.dstDevice = destination;
        node.copy.WidthInBytes = 8;
        node.copy.Height = node.copy.Depth = 1;
    }

    const CUfunction function_ = codec::from_wire<CUfunction>(codec::make_handle(codec::HandleKind::function, 1));
    worker::HandleTable handles;
    worker::Objects objects;
    GraphNode node;
    std::vector<unsigned char> payload;
};

TEST_F(GraphParamsTest, KernelArgumentsAreOneBuffer) {
    node.type = CU_GRAPH_NODE_TYPE_KERNEL;
    node.function = function_;
    node.grid_y = 7;
    payload = {1, 2, 3, 4};
    NodeParameters parameters;
    ASSERT_EQ(read(parameters), CUDA_SUCCESS);
    const auto& kernel = parameters.driver.kernel;
    EXPECT_EQ(kernel.func, reinterpret_cast<CUfunction>(0xf00));
    EXPECT_EQ(kernel.gridDimY, 7u);
    ASSERT_NE(kernel.extra, nullptr);
    EXPECT_EQ(kernel.extra[0], CU_LAUNCH_PARAM_BUFFER_POINTER);
    EXPECT_EQ(kernel.extra[1], payload.data());
    EXPECT_EQ(kernel.extra[2], CU_LAUNCH_PARAM_BUFFER_SIZE);
    EXPECT_EQ(*static_cast<std::size_t*>(kernel.extra[3]), 4u);
    EXPECT_EQ(kernel.extra[4], CU_LAUNCH_PARAM_END);
}

TEST_F(GraphParamsTest, KernelNeedsAFunctionOfTheSession) {
    node.type = CU_GRAPH_NODE_TYPE_KERNEL;
    EXPECT_EQ(read(), CUDA_ERROR_INVALID_HANDLE);
    for (const std::uint64_t handle : {std::uint64_t{0xf00}, codec::make_handle(codec::HandleKind::function, 2),
                                       codec::make_handle(codec::HandleKind::stream, 1)}) {
        node.function = codec::from_wire<CUfunction>(handle);
        EXPECT_EQ(read(), CUDA_ERROR_INVALID_HANDLE) << handle;
    }
    node.function = function_;
    node.context = codec::from_wire<CUcontext>(0x1234);
    EXPECT_EQ(read(), CUDA_ERROR_INVALID_CONTEXT);
}

TEST_F(GraphParamsTest, HostMemoryMustBeAName) {
    constexpr auto kHost = CU_MEMORYTYPE_HOST, kDevice = CU_MEMORYTYPE_DEVICE, kUnified = CU_MEMORYTYPE_UNIFIED;
    const std::uint64_t name = host_memory_name(5), address = reinterpret_cast<std::uint64_t>(&name);
    copy_with(kHost, name, kDevice, 0x1000);
    EXPECT_EQ(read(), CUDA_SUCCESS);
    copy_with(kHost, name, kHost, name);
    EXPECT_EQ(read(), CUDA_SUCCESS);
    copy_with(kHost, address, kDevice, 0x1000);
    EXPECT_EQ(read(), CUDA_ERROR_INVALID_VALUE);
    copy_with(kDevice, 0x1000, kHost, address);
    EXPECT_EQ(read(), CUDA_ERROR_INVALID_VALUE);
    copy_with(kHost, name, kHost, name + 1);
    EXPECT_EQ(read(), CUDA_ERROR_INVALID_VALUE);
    copy_with(kUnified, address, kDevice, 0x1000);
    EXPECT_EQ(read(), CUDA_ERROR_INVALID_VALUE) << "it might be host memory";
    copy_with(kDevice, 0x1000, kUnified, address);
    EXPECT_EQ(read(), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(GraphParamsTest, HostFunctionIsAName) {
    node.type = CU_GRAPH_NODE_TYPE_HOST;
    node.host_function = 0x4141414141414141;
    NodeParameters parameters;
    ASSERT_EQ(read(parameters), CUDA_SUCCESS);
    EXPECT_EQ(parameters.driver.host.fn, worker::placeholder_function) << "the client's function pointer is not called";
    EXPECT_EQ(parameters.driver.host.userData, reinterpret_cast<void*>(0x4141414141414141));
}

TEST_F(GraphParamsTest, ArrayLengthsMatchTheirCounts) {
    for (const int type : {CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, CU_GRAPH_NODE_TYPE_MEM_ALLOC}) {
        const std::size_t element =
            type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP ? sizeof(CUstreamBatchMemOpParams) : sizeof(CUmemAccessDesc);
        node = {};
        node.type = type;
        payload.assign(3 * element, 0);
        for (const std::uint32_t count : {0u, 2u, 4u, ~0u}) {
            node.count = count;
            EXPECT_EQ(read(), CUDA_ERROR_INVALID_VALUE) << type << ' ' << count;
        }
        node.count = 3;
        EXPECT_EQ(read(), CUDA_SUCCESS);
        payload.push_back(0);
        EXPECT_EQ(read(), CUDA_ERROR_INVALID_VALUE);
        payload.clear();
        node.count = 0;
        EXPECT_EQ(read(), CUDA_SUCCESS);
    }
}

TEST_F(GraphParamsTest, AllocationsHaveNoClientPointer) {
    node.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC;
    node.pool.win32SecurityAttributes = reinterpret_cast<void*>(0x4141);
    node.bytes = 77;
    NodeParameters parameters;
    ASSERT_EQ(read(parameters), CUDA_SUCCESS);
    EXPECT_EQ(parameters.driver.alloc.poolProps.win32SecurityAttributes, nullptr);
    EXPECT_EQ(parameters.driver.alloc.accessDescs, nullptr);
    EXPECT_EQ(parameters.driver.alloc.bytesize, 77u);
}

TEST_F(GraphParamsTest, EventsBelongToTheSessionAndAreKept) {
    const auto client = codec::from_wire<CUevent>(codec::make_handle(codec::HandleKind::event, 1));
    auto state = std::make_shared<worker::EventState>();
    state->driver = reinterpret_cast<CUevent>(0xe00);
    objects.events[client] = state;
    for (const int type : {CU_GRAPH_NODE_TYPE_EVENT_RECORD, CU_GRAPH_NODE_TYPE_WAIT_EVENT}) {
        node.type = type;
        node.event = reinterpret_cast<CUevent>(0xe00);
        EXPECT_EQ(read(), CUDA_ERROR_INVALID_HANDLE);
        node.event = client;
        state->in_graph = false;
        NodeParameters parameters;
        ASSERT_EQ(read(parameters), CUDA_SUCCESS);
        EXPECT_EQ(parameters.driver.eventWait.event, state->driver);
        EXPECT_TRUE(state->in_graph) << "a later record must not replace it";
    }
}

TEST_F(GraphParamsTest, UnknownTypesAreRefused) {
    for (const int type : {-1, static_cast<int>(CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL),
                           static_cast<int>(CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT), 14, 0x7fffffff}) {
        node.type = type;
        EXPECT_EQ(read(), CUDA_ERROR_NOT_SUPPORTED) << type;
    }
}

// ---- parameters that are returned

// The driver's answer; a static, since plain functions return it.
CUDA_KERNEL_NODE_PARAMS answer;

class DescribeKernel : public GraphParamsTest {
  protected:
    DescribeKernel() {
        answer = {};
        answer.func = reinterpret_cast<CUfunction>(0xf00);
        api.cuGraphNodeGetType = [](CUgraphNode, CUgraphNodeType* type) {
            *type = CU_GRAPH_NODE_TYPE_KERNEL;
            return CUDA_SUCCESS;
        };
        api.cuGraphKernelNodeGetParams_v2 = [](CUgraphNode, CUDA_KERNEL_NODE_PARAMS* parameters) {
            *parameters = answer;
            return CUDA_SUCCESS;
        };
        // Four bytes at 0, eight at 8.
        api.cuFuncGetParamInfo = [](CUfunction function, std::size_t index, std::size_t* offset, std::size_t* size) {
            *offset = index * 8;
            *size = index == 0 ? 4 : 8;
            return index < 2 && function != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
        };
        api.cuKernelGetParamInfo = [](CUkernel, std::size_t index, std::size_t* offset, std::size_t* size) {
            *offset = index * 8;
            *size = 2;
            return index < 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
        };
    }
    CUresult describe(std::size_t room) {
        payload.assign(room, 0xee);
        bytes = 99;
        return worker::describe(api, handles, nullptr, node, payload, bytes);
    }
    driver::Api api{};
    std::size_t bytes = 0;
};

TEST_F(DescribeKernel, ReturnsSeparateArguments) {
    std::uint32_t first = 0x11223344;
    std::uint64_t second = 0x5566778899aabbcc;
    void* arguments[] = {&first, &second};
    answer.kernelParams = arguments;
    ASSERT_EQ(describe(16), CUDA_SUCCESS);
    EXPECT_EQ(node.function, function_) << "the client's handle is returned";
    EXPECT_EQ(bytes, 16u);
    EXPECT_EQ(std::memcmp(payload.data(), &first, 4), 0);
    EXPECT_EQ(std::memcmp(payload.data() + 8, &second, 8), 0);
    ASSERT_EQ(describe(15), CUDA_SUCCESS);
    EXPECT_EQ(bytes, 16u) << "the required size is returned";
    EXPECT_EQ(std::memcmp(payload.data(), &first, 4), 0);
    EXPECT_EQ(payload[8], 0xee) << "nothing is written beyond the room";
    ASSERT_EQ(describe(0), CUDA_SUCCESS);
    EXPECT_EQ(bytes, 16u);
}

// A node that was captured before its kernel was loaded.
TEST_F(DescribeKernel, ReturnsArgumentsOfAKernelWithoutAFunction) {
    const auto kernel = codec::from_wire<CUkernel>(codec::make_handle(codec::HandleKind::kernel, 2));
    handles.bind(kernel, reinterpret_cast<CUkernel>(0xbe0));
    std::uint16_t only = 0x1122;
    void* arguments[] = {&only};
    answer.func = nullptr;
    answer.kern = reinterpret_cast<CUkernel>(0xbe0);
    answer.kernelParams = arguments;
    ASSERT_EQ(describe(16), CUDA_SUCCESS);
    EXPECT_EQ(codec::to_wire(node.function), codec::to_wire(kernel));
    ASSERT_EQ(bytes, 2u);
    EXPECT_EQ(std::memcmp(payload.data(), &only, 2), 0);
}

TEST_F(DescribeKernel, ReturnsPackedArguments) {
    unsigned char buffer[12] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    std::size_t size = sizeof buffer;
    void* in_order[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, buffer, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
                        CU_LAUNCH_PARAM_END};
    void* other_order[] = {CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_BUFFER_POINTER, buffer,
                           CU_LAUNCH_PARAM_END};
    for (void** extra : {in_order, other_order}) {
        answer.extra = extra;
        ASSERT_EQ(describe(16), CUDA_SUCCESS);
        EXPECT_EQ(bytes, 12u);
        EXPECT_EQ(std::memcmp(payload.data(), buffer, 12), 0);
        EXPECT_EQ(payload[12], 0xee);
        EXPECT_EQ(describe(12), CUDA_SUCCESS);
        ASSERT_EQ(describe(11), CUDA_SUCCESS);
        EXPECT_EQ(bytes, 12u) << "the required size is returned";
        EXPECT_EQ(std::memcmp(payload.data(), buffer, 11), 0);
    }
}

TEST_F(DescribeKernel, ReturnsNoArgumentsForNone) {
    ASSERT_EQ(describe(8), CUDA_SUCCESS);
    EXPECT_EQ(bytes, 0u);
    std::size_t size = 4;
    void* no_buffer[] = {CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END};
    answer.extra = no_buffer;
    EXPECT_EQ(describe(8), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_EQ(bytes, 0u);
}

// For a type without returned parameters only the type is described; an unknown type is an error.
TEST(Describe, OtherTypesAreReturnedWithoutParameters) {
    static CUgraphNodeType type;
    driver::Api api{};
    api.cuGraphNodeGetType = [](CUgraphNode, CUgraphNodeType* to) {
        *to = type;
        return CUDA_SUCCESS;
    };
    worker::HandleTable handles;
    std::vector<unsigned char> payload(8);
    std::size_t bytes = 99;
    const auto describe = [&](CUgraphNodeType asked) {
        type = asked;
        GraphNode node;
        const CUresult result = worker::describe(api, handles, nullptr, node, payload, bytes);
        EXPECT_EQ(node.type, static_cast<int>(asked));
        EXPECT_EQ(bytes, 0u);
        return result;
    };
    for (const auto known : {CU_GRAPH_NODE_TYPE_GRAPH, CU_GRAPH_NODE_TYPE_EMPTY, CU_GRAPH_NODE_TYPE_CONDITIONAL}) {
        EXPECT_EQ(describe(known), CUDA_SUCCESS) << known;
    }
    EXPECT_EQ(describe(CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_EQ(describe(CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT), CUDA_ERROR_NOT_SUPPORTED);
}

}  // namespace
}  // namespace gpupool::test
