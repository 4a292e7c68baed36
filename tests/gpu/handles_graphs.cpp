// What nodes of graphs, and captures, say of the handles that they were made with.
#include <cstring>
#include <vector>

#include "tests/gpu/handles.h"
#include "tests/gpu/images.h"

namespace gpupool::programs {
namespace {

CUgraph new_graph() {
    CUgraph graph = nullptr;
    DRIVER_OK(cuGraphCreate(&graph, 0));
    return graph;
}

// Parameters of a launch of store_word with one thread.
struct StoreWord {
    CUdeviceptr to = 0;
    unsigned value = 6;
    void* addresses[2] = {&to, &value};
    CUDA_KERNEL_NODE_PARAMS node{};

    StoreWord() {
        node.gridDimX = node.gridDimY = node.gridDimZ = 1;
        node.blockDimX = node.blockDimY = node.blockDimZ = 1;
        node.kernelParams = addresses;
    }
    StoreWord(const StoreWord&) = delete;
    StoreWord& operator=(const StoreWord&) = delete;
};

}  // namespace

void copy_nodes(const Device& device) {
    CUDA_ARRAY_DESCRIPTOR shape{64, 64, CU_AD_FORMAT_UNSIGNED_INT8, 1};
    CUarray from = nullptr, to = nullptr;
    DRIVER_OK(cuArrayCreate(&from, &shape));
    DRIVER_OK(cuArrayCreate(&to, &shape));
    CUDA_MEMCPY3D copy{}, seen{};
    copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
    copy.srcArray = from;
    copy.dstArray = to;
    copy.WidthInBytes = copy.Height = 64;
    copy.Depth = 1;
    CUgraph const graph = new_graph();
    CUgraphNode node = nullptr;
    DRIVER_OK(cuGraphAddMemcpyNode(&node, graph, nullptr, 0, &copy, device.context()));
    DRIVER_OK(cuGraphMemcpyNodeGetParams(node, &seen));
    check(seen.srcArray == from && seen.dstArray == to, "a copy's arrays");
    copy.srcArray = to;
    copy.dstArray = from;
    DRIVER_OK(cuGraphMemcpyNodeSetParams(node, &copy));
    DRIVER_OK(cuGraphMemcpyNodeGetParams(node, &seen));
    check(seen.srcArray == to && seen.dstArray == from, "the arrays that were set");
    DRIVER_OK(cuGraphDestroy(graph));
    DRIVER_OK(cuArrayDestroy(from));
    DRIVER_OK(cuArrayDestroy(to));
}

void kernel_nodes(const Device& device) {
    const Module module(kernels_ptx().data);
    CUlibrary library = nullptr;
    CUkernel kernel = nullptr;
    DRIVER_OK(cuLibraryLoadData(&library, kernels_ptx().data, nullptr, nullptr, 0, nullptr, nullptr, 0));
    DRIVER_OK(cuLibraryGetKernel(&kernel, library, "store_word"));
    CUgraph const graph = new_graph();
    CUgraphNode node = nullptr, clone_node = nullptr, again = nullptr;
    StoreWord store;
    CUDA_KERNEL_NODE_PARAMS seen{};
    store.node.func = module.function("store_word");
    DRIVER_OK(cuGraphAddKernelNode(&node, graph, nullptr, 0, &store.node));
    DRIVER_OK(cuGraphKernelNodeGetParams(node, &seen));
    check(seen.func == store.node.func && seen.kern == nullptr && seen.ctx == device.context() &&
              *static_cast<unsigned*>(seen.kernelParams[1]) == 6,
          "a node's function, context and arguments");

    CUgraph clone = nullptr;
    DRIVER_OK(cuGraphClone(&clone, graph));
    DRIVER_OK(cuGraphNodeFindInClone(&clone_node, node, clone));
    DRIVER_OK(cuGraphNodeFindInClone(&again, node, clone));
    check(clone_node == again && clone_node != node, "a node in a clone");
    DRIVER_OK(cuGraphKernelNodeGetParams(clone_node, &seen));
    check(seen.func == store.node.func, "the function of the clone's node");
    DRIVER_OK(cuGraphDestroy(clone));

    store.node.func = nullptr;
    store.node.kern = kernel;
    store.node.ctx = device.context();
    DRIVER_OK(cuGraphAddKernelNode(&node, graph, nullptr, 0, &store.node));
    CUfunction function = nullptr;
    DRIVER_OK(cuKernelGetFunction(&function, kernel));
    DRIVER_OK(cuGraphKernelNodeGetParams(node, &seen));
    check(seen.kern == kernel && seen.func == function && seen.ctx == device.context(),
          "a node's kernel, with its function and context");
    store.node.func = reinterpret_cast<CUfunction>(kernel);
    store.node.kern = nullptr;
    check_result(cuGraphAddKernelNode(&again, graph, nullptr, 0, &store.node), CUDA_ERROR_INVALID_HANDLE,
                 "a kernel in the place of a function");
    DRIVER_OK(cuGraphDestroy(graph));
    DRIVER_OK(cuLibraryUnload(library));
}

void other_nodes(const Device&) {
    CUgraph const graph = new_graph(), child = new_graph();
    CUevent event = nullptr, seen = nullptr;
    DRIVER_OK(cuEventCreate(&event, CU_EVENT_DEFAULT));
    CUgraphNode record = nullptr, wait = nullptr, nested = nullptr, empty = nullptr;
    DRIVER_OK(cuGraphAddEventRecordNode(&record, graph, nullptr, 0, event));
    DRIVER_OK(cuGraphEventRecordNodeGetEvent(record, &seen));
    check(seen == event, "the event that a node records");
    DRIVER_OK(cuGraphAddEventWaitNode(&wait, graph, &record, 1, event));
    DRIVER_OK(cuGraphEventWaitNodeGetEvent(wait, &seen));
    check(seen == event, "the event that a node waits for");
    DRIVER_OK(cuGraphAddEmptyNode(&empty, child, nullptr, 0));
    DRIVER_OK(cuGraphAddChildGraphNode(&nested, graph, nullptr, 0, child));
    CUgraph first = nullptr, second = nullptr;
    DRIVER_OK(cuGraphChildGraphNodeGetGraph(nested, &first));
    DRIVER_OK(cuGraphChildGraphNodeGetGraph(nested, &second));
    check(first == second && first != child, "a node's graph, which is a clone");

    size_t count = 3;
    CUgraphNode nodes[3] = {};
    DRIVER_OK(cuGraphGetNodes(graph, nodes, &count));
    unsigned known = 0;
    for (CUgraphNode const node : nodes) {
        known += node == record || node == wait || node == nested ? 1 : 0;
    }
    check(count == 3 && known == 3, "a graph's nodes");
    count = 2;
    CUgraphNode roots[2] = {};
    DRIVER_OK(cuGraphGetRootNodes(graph, roots, &count));
    check(count == 2 && (roots[0] == record || roots[1] == record), "a graph's roots");
    count = 1;
    CUgraphNode found = nullptr;
    DRIVER_OK(cuGraphNodeGetDependencies(wait, &found, nullptr, &count));
    check(count == 1 && found == record, "what a node depends on");
    count = 1;
    DRIVER_OK(cuGraphNodeGetDependentNodes(record, &found, nullptr, &count));
    check(count == 1 && found == wait, "what depends on a node");
    CUgraphNode from[2] = {}, to[2] = {};
    count = 2;
    DRIVER_OK(cuGraphGetEdges(graph, from, to, nullptr, &count));
    check(count == 1 && from[0] == record && to[0] == wait, "a graph's edges");
    DRIVER_OK(cuGraphDestroy(graph));
    DRIVER_OK(cuGraphDestroy(child));
    DRIVER_OK(cuEventDestroy(event));
}

void captures() {
    const Module module(kernels_ptx().data);
    CUdeviceptr word = 0;
    DRIVER_OK(cuMemAlloc(&word, 4));
    CUstream stream = nullptr;
    DRIVER_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    DRIVER_OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    DRIVER_OK(launch(module.function("store_word"), 1, 1, stream, word, 5u));
    CUstreamCaptureStatus status{};
    cuuint64_t id = 0;
    CUgraph during = nullptr, after = nullptr;
    const CUgraphNode* last = nullptr;
    size_t count = 0;
    DRIVER_OK(cuStreamGetCaptureInfo(stream, &status, &id, &during, &last, nullptr, &count));
    CUgraphNode const captured = count == 1 ? last[0] : nullptr;
    DRIVER_OK(cuStreamEndCapture(stream, &after));
    check(during == after, "a capture's graph");
    CUgraphNode node = nullptr;
    count = 1;
    DRIVER_OK(cuGraphGetNodes(after, &node, &count));
    check(count == 1 && node == captured, "a capture's node");
    CUDA_KERNEL_NODE_PARAMS seen{};
    DRIVER_OK(cuGraphKernelNodeGetParams(node, &seen));
    check(seen.func == module.function("store_word"), "the function that was captured");
    DRIVER_OK(cuGraphDestroy(after));
    DRIVER_OK(cuStreamDestroy(stream));
    DRIVER_OK(cuMemFree(word));
}

}  // namespace gpupool::programs
