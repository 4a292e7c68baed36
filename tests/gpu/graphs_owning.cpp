// Graphs whose nodes own memory or conditional graphs. Such graphs cannot be cloned.
#include <algorithm>

#include "tests/gpu/graphs.h"

namespace gpupool::programs {
namespace {

constexpr unsigned kWords = GraphWork::kWords;

// A graph with one conditional node that is always taken, and its body.
struct Conditional {
    CUgraph graph = nullptr, body = nullptr;
    CUgraphNode node = nullptr;
    bool supported = false;

    explicit Conditional(const Device& device) {
        DRIVER_OK(cuGraphCreate(&graph, 0));
        CUgraphNodeParams parameters{};
        void* create = nullptr;  // older drivers lack the function
        CUdriverProcAddressQueryResult found{};
        DRIVER_OK(cuGetProcAddress("cuGraphConditionalHandleCreate", &create, 12030, 0, &found));
        check((create != nullptr) == (found == CU_GET_PROC_ADDRESS_SUCCESS), "looked up: %d", static_cast<int>(found));
        if (create == nullptr) {
            return;
        }
        const CUresult result = reinterpret_cast<decltype(&cuGraphConditionalHandleCreate)>(create)(
            &parameters.conditional.handle, graph, device.context(), 1, CU_GRAPH_COND_ASSIGN_DEFAULT);
        check(result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_SUPPORTED, "a condition: %s",
              result_name(result).c_str());
        if (result != CUDA_SUCCESS) {
            return;
        }
        parameters.type = CU_GRAPH_NODE_TYPE_CONDITIONAL;
        parameters.conditional.type = CU_GRAPH_COND_TYPE_IF;
        parameters.conditional.size = 1;
        parameters.conditional.ctx = device.context();
        DRIVER_OK(cuGraphAddNode(&node, graph, nullptr, nullptr, 0, &parameters));
        body = parameters.conditional.phGraph_out[0];
        supported = true;
    }
    ~Conditional() { cuGraphDestroy(graph); }
    Conditional(const Conditional&) = delete;
    Conditional& operator=(const Conditional&) = delete;
};

}  // namespace

// From pageable memory to the graph's own, a kernel, and back; then again with other data.
void memory_and_host(const GraphWork& work) {
    std::vector<unsigned> in(kWords), out(kWords);
    CUgraph graph = nullptr;
    DRIVER_OK(cuStreamBeginCapture(work.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    CUdeviceptr memory = 0;
    DRIVER_OK(cuMemAllocAsync(&memory, GraphWork::kBytes, work.stream));
    DRIVER_OK(cuMemcpyHtoDAsync(memory, in.data(), GraphWork::kBytes, work.stream));
    DRIVER_OK(launch(work.add, GraphWork::kBlocks, GraphWork::kThreads, work.stream, memory, kWords, 7u));
    DRIVER_OK(cuMemcpyDtoHAsync(out.data(), memory, GraphWork::kBytes, work.stream));
    DRIVER_OK(cuMemFreeAsync(memory, work.stream));
    DRIVER_OK(cuStreamEndCapture(work.stream, &graph));
    CUgraphExec executable = nullptr;
    const CUresult result = cuGraphInstantiate(&executable, graph, 0);
    check(result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_SUPPORTED,
          "a graph with memory of its own that copies from and to the host: %s", result_name(result).c_str());
    if (result != CUDA_SUCCESS) {
        DRIVER_OK(cuGraphDestroy(graph));
        return;
    }
    for (const unsigned value : {100u, 2000u}) {
        std::fill(in.begin(), in.end(), value);
        std::fill(out.begin(), out.end(), 0u);
        DRIVER_OK(cuGraphLaunch(executable, work.stream));
        DRIVER_OK(cuStreamSynchronize(work.stream));
        check(std::all_of(out.begin(), out.end(), [value](unsigned seen) { return seen == value + 7; }), "%u became %u",
              value, out[0]);
    }
    size_t nodes = 0;
    DRIVER_OK(cuGraphGetNodes(graph, nullptr, &nodes));
    check(nodes == 5, "the graph is as it was made, of %zu nodes", nodes);
    DRIVER_OK(cuGraphExecDestroy(executable));
    DRIVER_OK(cuGraphDestroy(graph));
}

void conditional(const GraphWork& work, const Device& device) {
    const Conditional made(device);
    if (!made.supported) {
        note("this device has no conditional nodes");
        return;
    }
    CUdeviceptr data = work.device;
    unsigned count = kWords, added = 5;
    void* arguments[] = {&data, &count, &added};
    CUDA_KERNEL_NODE_PARAMS kernel{};
    kernel.func = work.add;
    kernel.gridDimX = GraphWork::kBlocks;
    kernel.blockDimX = GraphWork::kThreads;
    kernel.gridDimY = kernel.gridDimZ = kernel.blockDimY = kernel.blockDimZ = 1;
    kernel.kernelParams = arguments;
    CUgraphNode first = nullptr, second = nullptr;
    DRIVER_OK(cuGraphAddKernelNode(&first, made.body, nullptr, 0, &kernel));
    DRIVER_OK(cuGraphAddKernelNode(&second, made.body, &first, 1, &kernel));
    const CUgraphExec executable = instantiate(made.graph);
    DRIVER_OK(cuMemsetD32(work.device, 1, kWords));
    DRIVER_OK(cuCtxSynchronize());
    DRIVER_OK(cuGraphLaunch(executable, work.stream));
    DRIVER_OK(cuGraphLaunch(executable, work.stream));
    check(work.device_holds(21), "the body ran twice");
    DRIVER_OK(cuGraphExecDestroy(executable));

    // A body may use only pinned host memory, and none at all if the memory belongs to another process.
    const CUDA_MEMCPY3D copy = copy_out(work);
    CUgraphNode out = nullptr;
    DRIVER_OK(cuGraphAddMemcpyNode(&out, made.body, &second, 1, &copy, device.context()));
    CUgraphExec with_host = nullptr;
    const CUresult result = cuGraphInstantiate(&with_host, made.graph, 0);
    if (result == CUDA_ERROR_NOT_SUPPORTED) {
        note("no copies to the host on a condition");
        return;
    }
    check_result(result, CUDA_SUCCESS, "a copy to the host on a condition");
    work.fill_host(0);
    DRIVER_OK(cuGraphLaunch(with_host, work.stream));
    DRIVER_OK(cuStreamSynchronize(work.stream));
    check(work.host_holds(31), "the body's copy");
    DRIVER_OK(cuGraphExecDestroy(with_host));
}

}  // namespace gpupool::programs
