// What graphs hold beside kernels and copies: cooperative launches, memory of their own, conditional nodes, and parts
// that the program's side executes.
//
// Threads: one, and the driver's. Errors: as in driver.h.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/gpu/graphs.h"
#include "tests/gpu/images.h"

namespace gpupool::programs {
namespace {

constexpr size_t kBytes = 64u << 10;

CUstream make_stream() {
    CUstream stream = nullptr;
    DRIVER_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    return stream;
}

CUgraphNodeParams parameters_of(CUgraphNodeType type) {
    CUgraphNodeParams parameters;
    std::memset(static_cast<void*>(&parameters), 0, sizeof parameters);
    parameters.type = type;
    return parameters;
}

void begin_capture(CUstream stream) {
    DRIVER_OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
}

CUgraph end_capture(CUstream stream) {
    CUgraph graph = nullptr;
    DRIVER_OK(cuStreamEndCapture(stream, &graph));
    return graph;
}

CUgraphExec make(CUgraph graph, unsigned long long flags = 0) {
    CUgraphExec executable = nullptr;
    DRIVER_OK(cuGraphInstantiate(&executable, graph, flags));
    return executable;
}

void destroy(CUgraphExec executable, CUgraph graph) {
    DRIVER_OK(cuGraphExecDestroy(executable));
    DRIVER_OK(cuGraphDestroy(graph));
}

unsigned word_at(CUdeviceptr address) {
    unsigned word = 0;
    DRIVER_OK(cuMemcpyDtoH(&word, address, sizeof word));
    return word;
}

void CUDA_CB count(void* counter) {
    static_cast<std::atomic<int>*>(counter)->fetch_add(1);
}

// ---- launches

CUlaunchAttribute attribute(CUlaunchAttributeID id, int value) {
    CUlaunchAttribute made;
    std::memset(static_cast<void*>(&made), 0, sizeof made);
    made.id = id;
    if (id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) {
        made.value.cooperative = value;
    } else if (id == CU_LAUNCH_ATTRIBUTE_PRIORITY) {
        made.value.priority = value;
    } else {
        made.value.programmaticStreamSerializationAllowed = value;
    }
    return made;
}

// One captured launch with these attributes: it is in the graph, and the graph launches it.
void captured_launch(const GraphWork& work, const char* what, std::vector<CUlaunchAttribute> attributes,
                     bool cooperative) {
    CUdeviceptr data = work.device;
    unsigned words = GraphWork::kWords, added = 3;
    void* arguments[] = {&data, &words, &added};
    CUlaunchConfig config{};
    config.gridDimX = GraphWork::kBlocks;
    config.gridDimY = config.gridDimZ = 1;
    config.blockDimX = GraphWork::kThreads;
    config.blockDimY = config.blockDimZ = 1;
    config.hStream = work.stream;
    config.attrs = attributes.data();
    config.numAttrs = static_cast<unsigned>(attributes.size());
    DRIVER_OK(cuMemsetD32(work.device, 1, GraphWork::kWords));
    DRIVER_OK(cuCtxSynchronize());
    begin_capture(work.stream);
    check_result(cuLaunchKernelEx(&config, work.add, arguments, nullptr), CUDA_SUCCESS, what);
    const CUgraph graph = end_capture(work.stream);
    CUgraphNode node = nullptr;
    size_t nodes = 1;
    DRIVER_OK(cuGraphGetNodes(graph, &node, &nodes));
    CUkernelNodeAttrValue value{};
    DRIVER_OK(cuGraphKernelNodeGetAttribute(node, CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &value));
    check((value.cooperative != 0) == cooperative, "%s: the node is cooperative: %d", what, value.cooperative);
    const CUgraphExec executable = make(graph);
    DRIVER_OK(cuGraphLaunch(executable, work.stream));
    check(work.device_holds(4), "%s: launched", what);
    destroy(executable, graph);
}

void captured_launches(const GraphWork& work) {
    const CUlaunchAttribute yes = attribute(CU_LAUNCH_ATTRIBUTE_COOPERATIVE, 1);
    const CUlaunchAttribute priority = attribute(CU_LAUNCH_ATTRIBUTE_PRIORITY, -1);
    const CUlaunchAttribute serial = attribute(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, 1);
    captured_launch(work, "no attributes", {}, false);
    captured_launch(work, "cooperative", {yes}, true);
    captured_launch(work, "not cooperative", {attribute(CU_LAUNCH_ATTRIBUTE_COOPERATIVE, 0)}, false);
    captured_launch(work, "cooperative twice", {yes, yes}, true);
    captured_launch(work, "priority", {priority}, false);
    captured_launch(work, "cooperative, priority", {yes, priority}, true);
    captured_launch(work, "cooperative, programmatic serialization", {yes, serial}, true);

    CUdeviceptr data = work.device;
    unsigned words = GraphWork::kWords, added = 5;
    void* arguments[] = {&data, &words, &added};
    DRIVER_OK(cuMemsetD32(work.device, 1, GraphWork::kWords));
    DRIVER_OK(cuCtxSynchronize());
    begin_capture(work.stream);
    check_result(cuLaunchCooperativeKernel(work.add, GraphWork::kBlocks, 1, 1, GraphWork::kThreads, 1, 1, 0,
                                           work.stream, arguments),
                 CUDA_SUCCESS, "cuLaunchCooperativeKernel in a capture");
    const CUgraph graph = end_capture(work.stream);
    const CUgraphExec executable = make(graph);
    DRIVER_OK(cuGraphLaunch(executable, work.stream));
    check(work.device_holds(6), "cuLaunchCooperativeKernel from a graph");
    destroy(executable, graph);
}

// A node of a plain launch becomes cooperative, and is changed afterwards.
void cooperative_later(const GraphWork& work) {
    begin_capture(work.stream);
    DRIVER_OK(launch(work.add, GraphWork::kBlocks, GraphWork::kThreads, work.stream, work.device,
                     static_cast<unsigned>(GraphWork::kWords), 2u));
    const CUgraph graph = end_capture(work.stream);
    CUgraphNode node = nullptr;
    size_t nodes = 1;
    DRIVER_OK(cuGraphGetNodes(graph, &node, &nodes));
    CUkernelNodeAttrValue value{};
    value.cooperative = 1;
    check_result(cuGraphKernelNodeSetAttribute(node, CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &value), CUDA_SUCCESS,
                 "a captured launch becomes cooperative");
    const CUgraphExec executable = make(graph);
    CUdeviceptr data = work.device;
    unsigned words = GraphWork::kWords, added = 9;
    void* arguments[] = {&data, &words, &added};
    CUDA_KERNEL_NODE_PARAMS kernel{};
    DRIVER_OK(cuGraphKernelNodeGetParams(node, &kernel));
    kernel.kernelParams = arguments;
    kernel.extra = nullptr;
    check_result(cuGraphExecKernelNodeSetParams(executable, node, &kernel), CUDA_SUCCESS, "and gets other arguments");
    DRIVER_OK(cuMemsetD32(work.device, 1, GraphWork::kWords));
    DRIVER_OK(cuCtxSynchronize());
    DRIVER_OK(cuGraphLaunch(executable, work.stream));
    check(work.device_holds(10), "which its launch uses");
    destroy(executable, graph);
}

// ---- memory

struct Allocating {
    CUgraph graph = nullptr;
    CUdeviceptr memory = 0;
};

// A graph that allocates memory and fills it with sevens.
Allocating allocating(CUstream stream, bool frees) {
    Allocating made;
    begin_capture(stream);
    DRIVER_OK(cuMemAllocAsync(&made.memory, kBytes, stream));
    DRIVER_OK(cuMemsetD8Async(made.memory, 7, kBytes, stream));
    if (frees) {
        DRIVER_OK(cuMemFreeAsync(made.memory, stream));
    }
    made.graph = end_capture(stream);
    return made;
}

// What the driver says of memory of a graph that is, or is not, allocated now.
void is_allocated(CUdeviceptr memory, bool allocated, const char* when) {
    CUdeviceptr base = 0;
    size_t bytes = 0;
    const CUresult range = cuMemGetAddressRange(&base, &bytes, memory);
    check(allocated ? range == CUDA_SUCCESS && base == memory && bytes == kBytes : range == CUDA_ERROR_NOT_FOUND,
          "%s: its range: %s", when, result_name(range).c_str());
    unsigned type = 0;
    check_result(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, memory),
                 allocated ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE, when);
    if (!allocated) {
        unsigned char byte = 0;
        check_result(cuMemcpyDtoH(&byte, memory, 1), CUDA_ERROR_INVALID_VALUE, "a copy of it");
        check_result(cuMemsetD8(memory, 1, 16), CUDA_ERROR_INVALID_VALUE, "a memset of it");
        check_result(cuMemFree(memory), CUDA_ERROR_INVALID_VALUE, "cuMemFree of it");
    }
}

void freed_by_program() {
    CUstream stream = make_stream(), other = make_stream();
    const Allocating made = allocating(stream, false);
    is_allocated(made.memory, false, "captured");
    const CUgraphExec executable = make(made.graph);
    is_allocated(made.memory, false, "instantiated");
    for (int i = 0; i < 3; ++i) {
        DRIVER_OK(cuGraphLaunch(executable, stream));
        check_result(cuGraphLaunch(executable, stream), CUDA_ERROR_INVALID_VALUE, "launched while allocated");
        DRIVER_OK(cuStreamSynchronize(stream));
        is_allocated(made.memory, true, "launched");
        check(word_at(made.memory) == 0x07070707, "its content");
        check_result(cuMemFreeAsync(made.memory + 256, stream), CUDA_ERROR_INVALID_VALUE, "freed by its middle");
        if (i == 0) {
            check_result(cuMemFreeAsync(made.memory, stream), CUDA_SUCCESS, "cuMemFreeAsync");
            check_result(cuMemFreeAsync(made.memory, stream), CUDA_ERROR_INVALID_VALUE, "a second one");
        } else if (i == 1) {
            check_result(cuMemFree(made.memory), CUDA_SUCCESS, "cuMemFree");
        } else {
            check_result(cuMemFreeAsync(made.memory, other), CUDA_SUCCESS, "cuMemFreeAsync in another stream");
            DRIVER_OK(cuStreamSynchronize(other));
        }
        DRIVER_OK(cuStreamSynchronize(stream));
        is_allocated(made.memory, false, "freed");
    }
    // cuMemFree has freed it when it returns, for launches in every stream, also where no context is current.
    CUcontext context = nullptr;
    DRIVER_OK(cuCtxGetCurrent(&context));
    int wrong = 0;
    for (int i = 0; i < 100; ++i) {
        DRIVER_OK(cuGraphLaunch(executable, i % 2 == 0 ? stream : other));
        if (i % 3 == 0) {
            DRIVER_OK(cuStreamSynchronize(i % 2 == 0 ? stream : other));
        }
        DRIVER_OK(cuCtxSetCurrent(i % 5 == 0 ? nullptr : context));
        const CUresult freed = cuMemFree(made.memory);
        DRIVER_OK(cuCtxSetCurrent(context));
        DRIVER_OK(freed);
        DRIVER_OK(cuGraphLaunch(executable, other));
        DRIVER_OK(cuStreamSynchronize(other));
        wrong += word_at(made.memory) == 0x07070707 ? 0 : 1;
        DRIVER_OK(cuMemFreeAsync(made.memory, other));
        DRIVER_OK(cuStreamSynchronize(other));
    }
    check(wrong == 0, "100 rounds of launch, cuMemFree and launch: %d wrong", wrong);
    DRIVER_OK(cuGraphLaunch(executable, stream));
    destroy(executable, made.graph);
    DRIVER_OK(cuStreamSynchronize(stream));
    is_allocated(made.memory, true, "executable and graph are destroyed");
    check(word_at(made.memory) == 0x07070707, "its content stays");
    check_result(cuMemFree(made.memory), CUDA_SUCCESS, "cuMemFree then");
    is_allocated(made.memory, false, "freed for the last time");
    DRIVER_OK(cuStreamDestroy(stream));
    DRIVER_OK(cuStreamDestroy(other));
}

void freed_by_graphs() {
    CUstream stream = make_stream();
    const Allocating own = allocating(stream, true);
    const CUgraphExec frees_own = make(own.graph);
    for (int i = 0; i < 2; ++i) {
        DRIVER_OK(cuGraphLaunch(frees_own, stream));
        DRIVER_OK(cuStreamSynchronize(stream));
        is_allocated(own.memory, false, "the graph has freed it");
    }
    destroy(frees_own, own.graph);

    const Allocating made = allocating(stream, false);
    const CUgraphExec executable = make(made.graph);
    DRIVER_OK(cuGraphLaunch(executable, stream));
    begin_capture(stream);
    DRIVER_OK(cuMemFreeAsync(made.memory, stream));
    const CUgraph freeing = end_capture(stream);
    const CUgraphExec frees = make(freeing);
    for (int i = 0; i < 2; ++i) {
        DRIVER_OK(cuGraphLaunch(frees, stream));
        DRIVER_OK(cuStreamSynchronize(stream));
        is_allocated(made.memory, false, "another graph has freed it");
        check_result(cuGraphLaunch(frees, stream), CUDA_ERROR_INVALID_VALUE, "which cannot free it twice");
        DRIVER_OK(cuGraphLaunch(executable, stream));
    }
    DRIVER_OK(cuMemFree(made.memory));
    check_result(cuGraphLaunch(frees, stream), CUDA_ERROR_INVALID_VALUE, "nor after the program has freed it");
    destroy(frees, freeing);
    destroy(executable, made.graph);

    CUdeviceptr plain = 0, pooled = 0;
    DRIVER_OK(cuMemAlloc(&plain, kBytes));
    DRIVER_OK(cuMemAllocAsync(&pooled, kBytes, stream));
    DRIVER_OK(cuStreamSynchronize(stream));
    for (const CUdeviceptr memory : {plain, pooled}) {
        begin_capture(stream);
        check_result(cuMemFreeAsync(memory, stream), CUDA_ERROR_INVALID_VALUE, "a graph cannot free other memory");
        DRIVER_OK(cuGraphDestroy(end_capture(stream)));
        DRIVER_OK(cuMemFree(memory));
    }
    DRIVER_OK(cuStreamDestroy(stream));
}

void freed_on_launch() {
    CUstream stream = make_stream();
    const Allocating made = allocating(stream, false);
    const CUgraphExec executable = make(made.graph, CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
    DRIVER_OK(cuGraphLaunch(executable, stream));
    check_result(cuGraphLaunch(executable, stream), CUDA_SUCCESS, "launched while allocated: it is freed first");
    DRIVER_OK(cuMemFreeAsync(made.memory, stream));
    DRIVER_OK(cuGraphLaunch(executable, stream));
    DRIVER_OK(cuStreamSynchronize(stream));
    is_allocated(made.memory, true, "launched again");
    DRIVER_OK(cuMemFree(made.memory));
    check_result(cuMemFree(made.memory), CUDA_ERROR_INVALID_VALUE, "a second cuMemFree");
    destroy(executable, made.graph);
    DRIVER_OK(cuStreamDestroy(stream));
}

// ---- parts on the program's side, in graphs that the driver does not clone

struct Shape {
    size_t nodes = 0, edges = 0, roots = 0;
};

Shape shape_of(CUgraph graph) {
    Shape shape;
    DRIVER_OK(cuGraphGetNodes(graph, nullptr, &shape.nodes));
    DRIVER_OK(cuGraphGetEdges(graph, nullptr, nullptr, nullptr, &shape.edges));
    DRIVER_OK(cuGraphGetRootNodes(graph, nullptr, &shape.roots));
    return shape;
}

// Memory of the graph's own, copies from and to pageable memory, a host function, and a child graph with one. It is
// instantiated twice: the graph is as before.
void memory_with_host(const GraphWork& work) {
    std::atomic<int> calls{0};
    std::vector<unsigned> in(GraphWork::kWords), out(GraphWork::kWords);
    begin_capture(work.stream);
    CUdeviceptr memory = 0;
    DRIVER_OK(cuMemAllocAsync(&memory, GraphWork::kBytes, work.stream));
    DRIVER_OK(cuMemcpyHtoDAsync(memory, in.data(), GraphWork::kBytes, work.stream));
    DRIVER_OK(launch(work.add, GraphWork::kBlocks, GraphWork::kThreads, work.stream, memory,
                     static_cast<unsigned>(GraphWork::kWords), 7u));
    DRIVER_OK(cuMemcpyDtoHAsync(out.data(), memory, GraphWork::kBytes, work.stream));
    DRIVER_OK(cuLaunchHostFunc(work.stream, count, &calls));
    DRIVER_OK(cuMemFreeAsync(memory, work.stream));
    const CUgraph graph = end_capture(work.stream);
    CUgraph child = nullptr;
    DRIVER_OK(cuGraphCreate(&child, 0));
    CUgraphNode node = nullptr, in_child = nullptr;
    const CUDA_HOST_NODE_PARAMS host{count, &calls};
    DRIVER_OK(cuGraphAddHostNode(&node, child, nullptr, 0, &host));
    DRIVER_OK(cuGraphAddChildGraphNode(&in_child, graph, nullptr, 0, child));
    DRIVER_OK(cuGraphDestroy(child));
    const Shape before = shape_of(graph);
    for (unsigned value = 100; value < 103; ++value) {
        const CUgraphExec executable = make(graph);
        for (int i = 0; i < 2; ++i) {
            std::fill(in.begin(), in.end(), value + static_cast<unsigned>(i));
            std::fill(out.begin(), out.end(), 0u);
            calls = 0;
            DRIVER_OK(cuGraphLaunch(executable, work.stream));
            DRIVER_OK(cuStreamSynchronize(work.stream));
            const unsigned expected = value + static_cast<unsigned>(i) + 7;
            check(std::all_of(out.begin(), out.end(), [=](unsigned seen) { return seen == expected; }),
                  "%u, expected %u", out[0], expected);
            check(calls == 2, "both host functions ran once: %d", calls.load());
        }
        const Shape now = shape_of(graph);
        check(now.nodes == before.nodes && now.edges == before.edges && now.roots == before.roots,
              "the graph is as before: %zu nodes, %zu edges, %zu roots", now.nodes, now.edges, now.roots);
        DRIVER_OK(cuGraphExecDestroy(executable));
    }
    CUgraph inner = nullptr;
    size_t nodes = 0;
    DRIVER_OK(cuGraphChildGraphNodeGetGraph(in_child, &inner));
    DRIVER_OK(cuGraphGetNodes(inner, nullptr, &nodes));
    check(nodes == 1, "so is the child graph");
    DRIVER_OK(cuGraphDestroy(graph));
}

// ---- conditional nodes

struct Conditional {
    CUgraph graph = nullptr;
    CUgraphConditionalHandle handle = 0;
    std::vector<CUgraph> bodies;
    CUgraphNode node = nullptr;
};

// A graph with a conditional node whose condition begins as `value`.
Conditional conditional_graph(const Device& device, CUgraphConditionalNodeType type, unsigned size, unsigned value) {
    Conditional made;
    DRIVER_OK(cuGraphCreate(&made.graph, 0));
    DRIVER_OK(cuGraphConditionalHandleCreate(&made.handle, made.graph, device.context(), value,
                                             CU_GRAPH_COND_ASSIGN_DEFAULT));
    CUgraphNodeParams parameters = parameters_of(CU_GRAPH_NODE_TYPE_CONDITIONAL);
    parameters.conditional.handle = made.handle;
    parameters.conditional.type = type;
    parameters.conditional.size = size;
    parameters.conditional.ctx = device.context();
    DRIVER_OK(cuGraphAddNode(&made.node, made.graph, nullptr, nullptr, 0, &parameters));
    made.bodies.assign(parameters.conditional.phGraph_out, parameters.conditional.phGraph_out + size);
    return made;
}

template <class... Parameters>
CUgraphNode add_kernel(CUgraph graph, CUgraphNode before, CUfunction function, unsigned blocks, unsigned threads,
                       Parameters... parameters) {
    void* arguments[] = {static_cast<void*>(&parameters)...};
    CUDA_KERNEL_NODE_PARAMS kernel{};
    kernel.func = function;
    kernel.gridDimX = blocks;
    kernel.blockDimX = threads;
    kernel.gridDimY = kernel.gridDimZ = kernel.blockDimY = kernel.blockDimZ = 1;
    kernel.kernelParams = arguments;
    CUgraphNode node = nullptr;
    DRIVER_OK(
        cuGraphAddKernelNode(&node, graph, before == nullptr ? nullptr : &before, before == nullptr ? 0 : 1, &kernel));
    return node;
}

// Each body adds another power of two; returns what was added.
unsigned bodies_that_run(const GraphWork& work, const Conditional& made) {
    for (size_t i = 0; i < made.bodies.size(); ++i) {
        add_kernel(made.bodies[i], nullptr, work.add, GraphWork::kBlocks, GraphWork::kThreads, work.device,
                   static_cast<unsigned>(GraphWork::kWords), 1u << i);
    }
    DRIVER_OK(cuMemsetD32(work.device, 0, GraphWork::kWords));
    DRIVER_OK(cuCtxSynchronize());
    const CUgraphExec executable = make(made.graph);
    CUgraphExec second = nullptr;
    check_result(cuGraphInstantiate(&second, made.graph, 0), CUDA_ERROR_NOT_SUPPORTED, "a second executable");
    DRIVER_OK(cuGraphLaunch(executable, work.stream));
    DRIVER_OK(cuStreamSynchronize(work.stream));
    const unsigned added = word_at(work.device);
    destroy(executable, made.graph);
    return added;
}

void conditions(const GraphWork& work, const Device& device) {
    for (const unsigned value : {0u, 1u, 7u}) {
        const unsigned once = bodies_that_run(work, conditional_graph(device, CU_GRAPH_COND_TYPE_IF, 1, value));
        check(once == (value != 0 ? 1u : 0u), "if %u: %u", value, once);
        const unsigned other = bodies_that_run(work, conditional_graph(device, CU_GRAPH_COND_TYPE_IF, 2, value));
        check(other == (value != 0 ? 1u : 2u), "if %u, else: %u", value, other);
    }
    for (const unsigned value : {0u, 2u, 3u, 9u}) {
        const unsigned one = bodies_that_run(work, conditional_graph(device, CU_GRAPH_COND_TYPE_SWITCH, 3, value));
        check(one == (value < 3 ? 1u << value : 0u), "switch %u: %u", value, one);
    }
    const unsigned never = bodies_that_run(work, conditional_graph(device, CU_GRAPH_COND_TYPE_WHILE, 1, 0));
    check(never == 0, "while 0: %u", never);
}

// A condition within a condition, made for either graph.
void nested_conditions(const GraphWork& work, const Device& device) {
    for (const bool of_body : {false, true}) {
        const Conditional outer = conditional_graph(device, CU_GRAPH_COND_TYPE_IF, 1, 1);
        CUgraphNode node = nullptr;
        CUgraphNodeParams parameters = parameters_of(CU_GRAPH_NODE_TYPE_CONDITIONAL);
        DRIVER_OK(cuGraphConditionalHandleCreate(&parameters.conditional.handle,
                                                 of_body ? outer.bodies[0] : outer.graph, device.context(), 1,
                                                 CU_GRAPH_COND_ASSIGN_DEFAULT));
        parameters.conditional.type = CU_GRAPH_COND_TYPE_IF;
        parameters.conditional.size = 1;
        parameters.conditional.ctx = device.context();
        DRIVER_OK(cuGraphAddNode(&node, outer.bodies[0], nullptr, nullptr, 0, &parameters));
        add_kernel(parameters.conditional.phGraph_out[0], nullptr, work.add, GraphWork::kBlocks, GraphWork::kThreads,
                   work.device, static_cast<unsigned>(GraphWork::kWords), 3u);
        DRIVER_OK(cuMemsetD32(work.device, 0, GraphWork::kWords));
        DRIVER_OK(cuCtxSynchronize());
        const CUgraphExec executable = make(outer.graph);
        DRIVER_OK(cuGraphLaunch(executable, work.stream));
        check(work.device_holds(3), "the innermost graph ran");
        destroy(executable, outer.graph);
    }
}

void refused_conditions(const Device& device) {
    Conditional made = conditional_graph(device, CU_GRAPH_COND_TYPE_IF, 1, 1);
    CUgraphNode node = nullptr;
    CUgraphNodeParams parameters = parameters_of(CU_GRAPH_NODE_TYPE_CONDITIONAL);
    parameters.conditional.handle = made.handle;
    parameters.conditional.type = CU_GRAPH_COND_TYPE_IF;
    parameters.conditional.size = 1;
    parameters.conditional.ctx = device.context();
    check_result(cuGraphAddNode(&node, made.graph, nullptr, nullptr, 0, &parameters), CUDA_ERROR_INVALID_VALUE,
                 "a second node of a condition");
    DRIVER_OK(cuGraphConditionalHandleCreate(&parameters.conditional.handle, made.graph, device.context(), 0, 0));
    CUDA_GRAPH_INSTANTIATE_PARAMS how{};
    CUgraphExec executable = nullptr;
    check_result(cuGraphInstantiateWithParams(&executable, made.graph, &how), CUDA_ERROR_INVALID_VALUE,
                 "a condition without a node");
    check(how.result_out == CUDA_GRAPH_INSTANTIATE_CONDITIONAL_HANDLE_UNUSED, "the reason: %d", how.result_out);
    for (const unsigned size : {0u, 3u}) {
        parameters.conditional.size = size;
        check_result(cuGraphAddNode(&node, made.graph, nullptr, nullptr, 0, &parameters), CUDA_ERROR_INVALID_VALUE,
                     "an if with so many graphs");
    }
    CUgraph other = nullptr;
    check_result(cuGraphClone(&other, made.graph), CUDA_ERROR_NOT_SUPPORTED, "a clone");
    DRIVER_OK(cuGraphDestroy(made.graph));
}

// A host function before the conditional node, and copies to and from pinned memory within its graph.
void conditions_and_host(const GraphWork& work, const Device& device) {
    std::atomic<int> calls{0};
    const Conditional made = conditional_graph(device, CU_GRAPH_COND_TYPE_IF, 1, 1);
    const CUDA_HOST_NODE_PARAMS host{count, &calls};
    CUgraphNode before = nullptr, in = nullptr, out = nullptr;
    DRIVER_OK(cuGraphAddHostNode(&before, made.graph, nullptr, 0, &host));
    DRIVER_OK(cuGraphAddDependencies(made.graph, &before, &made.node, nullptr, 1));
    CUDA_MEMCPY3D copy = copy_out(work);
    std::swap(copy.srcMemoryType, copy.dstMemoryType);
    copy.srcHost = work.host_in;
    copy.dstDevice = work.device;
    DRIVER_OK(cuGraphAddMemcpyNode(&in, made.bodies[0], nullptr, 0, &copy, device.context()));
    const CUgraphNode added = add_kernel(made.bodies[0], in, work.add, GraphWork::kBlocks, GraphWork::kThreads,
                                         work.device, static_cast<unsigned>(GraphWork::kWords), 4u);
    const CUDA_MEMCPY3D back = copy_out(work);
    DRIVER_OK(cuGraphAddMemcpyNode(&out, made.bodies[0], &added, 1, &back, device.context()));
    for (int round = 0; round < 2; ++round) {
        const CUgraphExec executable = make(made.graph);
        for (unsigned value = 10; value < 13; ++value) {
            work.fill_host(value);
            calls = 0;
            DRIVER_OK(cuGraphLaunch(executable, work.stream));
            DRIVER_OK(cuStreamSynchronize(work.stream));
            check(work.host_holds(value + 4) && calls == 1, "%u became %u, the function ran %d times", value,
                  work.host_out[0], calls.load());
        }
        check(node_count(made.graph) == 2 && node_count(made.bodies[0]) == 3, "the graphs are as before");
        DRIVER_OK(cuGraphExecDestroy(executable));
    }
    DRIVER_OK(cuGraphDestroy(made.graph));
}

// A kernel that counts a word down and ends the loop at zero. It calls NVIDIA's device runtime.
constexpr const char* kCountDown = R"(.version 7.0
.target sm_70
.address_size 64
.extern .func cudaGraphSetConditional(.param .b64 handle, .param .b32 value);
.visible .entry count_down(.param .u64 handle, .param .u64 words)
{
    .reg .pred %more;
    .reg .b32 %left, %runs, %zero;
    .reg .b64 %handle, %words;
    ld.param.u64 %handle, [handle];
    ld.param.u64 %words, [words];
    ld.global.u32 %left, [%words];
    sub.u32 %left, %left, 1;
    st.global.u32 [%words], %left;
    ld.global.u32 %runs, [%words+4];
    add.u32 %runs, %runs, 1;
    st.global.u32 [%words+4], %runs;
    setp.ne.u32 %more, %left, 0;
    @%more bra done;
    mov.u32 %zero, 0;
    {
        .param .b64 a;
        .param .b32 b;
        st.param.b64 [a], %handle;
        st.param.b32 [b], %zero;
        call cudaGraphSetConditional, (a, b);
    }
done:
    ret;
}
)";

// Null if this machine has no device runtime to link with.
CUmodule load_with_device_runtime(const char* code, std::vector<char>& image) {
    const char* const library = "/usr/local/cuda/lib64/libcudadevrt.a";
    if (!std::ifstream(library)) {
        return nullptr;
    }
    CUlinkState link = nullptr;
    DRIVER_OK(cuLinkCreate(0, nullptr, nullptr, &link));
    DRIVER_OK(cuLinkAddData(link, CU_JIT_INPUT_PTX, const_cast<char*>(code), std::strlen(code) + 1, "code", 0, nullptr,
                            nullptr));
    DRIVER_OK(cuLinkAddFile(link, CU_JIT_INPUT_LIBRARY, library, 0, nullptr, nullptr));
    void* linked = nullptr;
    size_t bytes = 0;
    DRIVER_OK(cuLinkComplete(link, &linked, &bytes));
    image.assign(static_cast<char*>(linked), static_cast<char*>(linked) + bytes);
    DRIVER_OK(cuLinkDestroy(link));
    CUmodule module = nullptr;
    DRIVER_OK(cuModuleLoadData(&module, image.data()));
    return module;
}

void loop(const GraphWork& work, const Device& device) {
    std::vector<char> image;
    const CUmodule module = load_with_device_runtime(kCountDown, image);
    if (module == nullptr) {
        note("no device runtime to link with");
        return;
    }
    CUfunction count_down = nullptr;
    DRIVER_OK(cuModuleGetFunction(&count_down, module, "count_down"));
    const Conditional made = conditional_graph(device, CU_GRAPH_COND_TYPE_WHILE, 1, 1);
    add_kernel(made.bodies[0], nullptr, count_down, 1, 1, made.handle, work.device);
    const CUgraphExec executable = make(made.graph);
    DRIVER_OK(cuMemsetD32(work.device, 0, 2));
    for (unsigned launched = 1; launched <= 2; ++launched) {
        DRIVER_OK(cuMemsetD32(work.device, 5, 1));
        DRIVER_OK(cuCtxSynchronize());
        DRIVER_OK(cuGraphLaunch(executable, work.stream));
        DRIVER_OK(cuStreamSynchronize(work.stream));
        check(word_at(work.device) == 0 && word_at(work.device + 4) == 5 * launched, "%u left, %u runs",
              word_at(work.device), word_at(work.device + 4));
    }
    destroy(executable, made.graph);
    DRIVER_OK(cuModuleUnload(module));
}

// ---- user objects

struct Watched {
    std::atomic<int> destroyed{0};
    std::atomic<bool> here{false};     // on the thread that made the call
    std::atomic<bool> refused{false};  // a call in the destructor was
    std::thread::id thread = std::this_thread::get_id();
};

void CUDA_CB note_destroyed(void* argument) {
    auto& watched = *static_cast<Watched*>(argument);
    watched.here = std::this_thread::get_id() == watched.thread;
    watched.refused = cuStreamQuery(nullptr) == CUDA_ERROR_NOT_PERMITTED;
    watched.destroyed.fetch_add(1);
}

CUuserObject make_object(Watched& watched, unsigned references = 1) {
    CUuserObject object = nullptr;
    DRIVER_OK(cuUserObjectCreate(&object, &watched, note_destroyed, references, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
    return object;
}

void is_destroyed(const Watched& watched, bool expected, const char* when) {
    check(watched.destroyed == (expected ? 1 : 0), "%s: destroyed %d times", when, watched.destroyed.load());
    if (expected) {
        check(watched.here && watched.refused, "%s: by the calling thread, without calls of the driver", when);
    }
}

// A graph of one kernel that takes some milliseconds.
CUgraph kernel_graph(const GraphWork& work) {
    CUgraph graph = nullptr;
    DRIVER_OK(cuGraphCreate(&graph, 0));
    add_kernel(graph, nullptr, work.add, GraphWork::kBlocks, GraphWork::kThreads, work.device,
               static_cast<unsigned>(GraphWork::kWords), 1u);
    return graph;
}

CUgraph graph_with(const GraphWork& work, Watched& watched) {
    const CUgraph graph = kernel_graph(work);
    DRIVER_OK(cuGraphRetainUserObject(graph, make_object(watched), 1, CU_GRAPH_USER_OBJECT_MOVE));
    return graph;
}

void counted_objects() {
    Watched watched;
    CUuserObject object = nullptr;
    check_result(cuUserObjectCreate(nullptr, &watched, note_destroyed, 1, 1), CUDA_ERROR_INVALID_VALUE, "no place");
    check_result(cuUserObjectCreate(&object, &watched, nullptr, 1, 1), CUDA_ERROR_INVALID_VALUE, "no destructor");
    check_result(cuUserObjectCreate(&object, &watched, note_destroyed, 0, 1), CUDA_ERROR_INVALID_VALUE, "none");
    check_result(cuUserObjectCreate(&object, &watched, note_destroyed, 1, 0), CUDA_ERROR_INVALID_VALUE, "no flag");
    object = make_object(watched, 2);
    check_result(cuUserObjectRetain(object, 0), CUDA_ERROR_INVALID_VALUE, "retained not at all");
    check_result(cuUserObjectRelease(object, 0), CUDA_ERROR_INVALID_VALUE, "released not at all");
    check_result(cuUserObjectRetain(nullptr, 1), CUDA_ERROR_INVALID_VALUE, "no object");
    DRIVER_OK(cuUserObjectRetain(object, 1));
    DRIVER_OK(cuUserObjectRelease(object, 2));
    is_destroyed(watched, false, "two of three released");
    DRIVER_OK(cuUserObjectRelease(object, 1));
    is_destroyed(watched, true, "all released");
}

void objects_of_graphs(const GraphWork& work) {
    Watched kept, moved, in_clone, in_child, late;
    CUgraph graph = kernel_graph(work);
    const CUuserObject object = make_object(kept);
    check_result(cuGraphRetainUserObject(graph, object, 1, 5), CUDA_ERROR_INVALID_VALUE, "unknown flags");
    check_result(cuGraphRetainUserObject(graph, object, 0, 0), CUDA_ERROR_INVALID_VALUE, "retained not at all");
    check_result(cuGraphRetainUserObject(nullptr, object, 1, 0), CUDA_ERROR_INVALID_VALUE, "no graph");
    DRIVER_OK(cuGraphRetainUserObject(graph, object, 1, 0));
    DRIVER_OK(cuUserObjectRelease(object, 1));
    is_destroyed(kept, false, "the graph has a reference");
    DRIVER_OK(cuGraphReleaseUserObject(graph, object, 1));
    is_destroyed(kept, true, "which it released");
    DRIVER_OK(cuGraphRetainUserObject(graph, make_object(moved), 1, CU_GRAPH_USER_OBJECT_MOVE));
    DRIVER_OK(cuGraphDestroy(graph));
    is_destroyed(moved, true, "its graph is destroyed");

    graph = graph_with(work, in_clone);
    CUgraph clone = nullptr;
    DRIVER_OK(cuGraphClone(&clone, graph));
    DRIVER_OK(cuGraphDestroy(graph));
    is_destroyed(in_clone, false, "a clone has it");
    DRIVER_OK(cuGraphDestroy(clone));
    is_destroyed(in_clone, true, "the clone is destroyed");

    CUgraph parent = nullptr;
    CUgraphNode node = nullptr;
    DRIVER_OK(cuGraphCreate(&parent, 0));
    graph = graph_with(work, in_child);
    DRIVER_OK(cuGraphAddChildGraphNode(&node, parent, nullptr, 0, graph));
    DRIVER_OK(cuGraphDestroy(graph));
    is_destroyed(in_child, false, "a child graph's node has it");
    DRIVER_OK(cuGraphDestroyNode(node));
    is_destroyed(in_child, true, "the node is destroyed");
    DRIVER_OK(cuGraphDestroy(parent));

    graph = kernel_graph(work);
    const CUgraphExec executable = make(graph);
    DRIVER_OK(cuGraphRetainUserObject(graph, make_object(late), 1, CU_GRAPH_USER_OBJECT_MOVE));
    DRIVER_OK(cuGraphDestroy(graph));
    is_destroyed(late, true, "an executable that was made before does not have it");
    DRIVER_OK(cuGraphExecDestroy(executable));
}

void objects_of_executables(const GraphWork& work) {
    Watched idle, first, second, launched;
    CUgraph graph = graph_with(work, idle);
    CUgraphExec executable = make(graph);
    DRIVER_OK(cuGraphDestroy(graph));
    is_destroyed(idle, false, "an executable has it");
    DRIVER_OK(cuGraphExecDestroy(executable));
    is_destroyed(idle, true, "the executable is destroyed, never launched");

    graph = graph_with(work, first);
    executable = make(graph);
    DRIVER_OK(cuGraphDestroy(graph));
    graph = graph_with(work, second);
    CUgraphExecUpdateResultInfo information{};
    DRIVER_OK(cuGraphExecUpdate(executable, graph, &information));
    is_destroyed(first, true, "the executable was updated from another graph");
    DRIVER_OK(cuGraphDestroy(graph));
    is_destroyed(second, false, "whose object it has now");
    DRIVER_OK(cuGraphExecDestroy(executable));
    is_destroyed(second, true, "until it is destroyed");

    graph = graph_with(work, launched);
    executable = make(graph);
    DRIVER_OK(cuGraphDestroy(graph));
    DRIVER_OK(cuGraphLaunch(executable, work.stream));
    DRIVER_OK(cuGraphLaunch(executable, work.stream));
    DRIVER_OK(cuStreamSynchronize(work.stream));
    is_destroyed(launched, false, "launched");
    DRIVER_OK(cuGraphExecDestroy(executable));
    for (int i = 0; i < 500 && launched.destroyed == 0; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    check(launched.destroyed == 1 && launched.refused, "destroyed after its launches: %d", launched.destroyed.load());
}

// ---- a child graph with memory

void moved_child(const GraphWork& work) {
    const Allocating made = allocating(work.stream, true);
    CUgraph parent = nullptr, found = nullptr;
    CUgraphNode node = nullptr;
    DRIVER_OK(cuGraphCreate(&parent, 0));
    CUgraphNodeParams parameters = parameters_of(CU_GRAPH_NODE_TYPE_GRAPH);
    parameters.graph.graph = made.graph;
    check_result(cuGraphAddNode(&node, parent, nullptr, nullptr, 0, &parameters), CUDA_ERROR_NOT_SUPPORTED,
                 "a copy of a graph with memory");
    parameters.graph.ownership = CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE;
    check_result(cuGraphAddNode(&node, parent, nullptr, nullptr, 0, &parameters), CUDA_SUCCESS, "the graph itself");
    DRIVER_OK(cuGraphChildGraphNodeGetGraph(node, &found));
    check(found == made.graph, "it is the child graph");
    check_result(cuGraphDestroy(made.graph), CUDA_ERROR_INVALID_VALUE, "destroyed by itself");
    const CUgraphExec executable = make(parent);
    for (int i = 0; i < 2; ++i) {
        DRIVER_OK(cuGraphLaunch(executable, work.stream));
        DRIVER_OK(cuStreamSynchronize(work.stream));
        is_allocated(made.memory, false, "it frees its memory");
    }
    destroy(executable, parent);
}

// ---- graphs that kernels launch

constexpr const char* kLauncher = R"(.version 7.0
.target sm_70
.address_size 64
.extern .func (.param .b32 result) cudaGraphLaunch(.param .b64 graph, .param .b64 stream);
.visible .entry launch_graph(.param .u64 graph, .param .u64 how, .param .u64 result)
{
    .reg .b32 %result;
    .reg .b64 %graph, %how, %place;
    ld.param.u64 %graph, [graph];
    ld.param.u64 %how, [how];
    ld.param.u64 %place, [result];
    {
        .param .b64 a;
        .param .b64 b;
        .param .b32 c;
        st.param.b64 [a], %graph;
        st.param.b64 [b], %how;
        call (c), cudaGraphLaunch, (a, b);
        ld.param.b32 %result, [c];
    }
    st.global.u32 [%place], %result;
    ret;
}
)";

void launched_by_kernels(const GraphWork& work) {
    const CUgraph graph = kernel_graph(work);
    CUgraphExec executable = nullptr;
    const CUresult made = cuGraphInstantiate(&executable, graph, CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH);
    std::vector<char> image;
    const CUmodule module = made == CUDA_SUCCESS ? load_with_device_runtime(kLauncher, image) : nullptr;
    if (module == nullptr) {
        note("no launches of graphs by kernels");
        DRIVER_OK(cuGraphDestroy(graph));
        return;
    }
    cuuint64_t flags = 0;
    DRIVER_OK(cuGraphExecGetFlags(executable, &flags));
    check(flags == CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH, "its flags: %llu",
          static_cast<unsigned long long>(flags));
    CUfunction launcher = nullptr;
    CUdeviceptr result = 0;
    DRIVER_OK(cuModuleGetFunction(&launcher, module, "launch_graph"));
    DRIVER_OK(cuMemAlloc(&result, 4));
    DRIVER_OK(cuMemsetD32(work.device, 0, GraphWork::kWords));
    DRIVER_OK(cuGraphUpload(executable, work.stream));
    DRIVER_OK(cuGraphLaunch(executable, work.stream));
    check(work.device_holds(1), "launched by the host");
    unsigned expected = 1;
    constexpr unsigned long long kTail = 0x0100000000000000, kForget = 0x0200000000000000;
    for (const unsigned long long how : {kTail, kForget}) {
        CUgraph launching = nullptr;
        DRIVER_OK(cuGraphCreate(&launching, 0));
        add_kernel(launching, nullptr, launcher, 1, 1, executable, how, result);
        const CUgraphExec launches = make(launching, CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH);
        for (int i = 0; i < 2; ++i) {
            DRIVER_OK(cuMemsetD32(result, 99, 1));
            DRIVER_OK(cuCtxSynchronize());
            DRIVER_OK(cuGraphLaunch(launches, work.stream));
            check(work.device_holds(++expected) && word_at(result) == 0, "launched by a kernel: %u", word_at(result));
        }
        destroy(launches, launching);
    }
    CUgraphExecUpdateResultInfo information{};
    DRIVER_OK(cuGraphExecUpdate(executable, graph, &information));
    DRIVER_OK(cuGraphLaunch(executable, work.stream));
    check(work.device_holds(expected + 1), "and by the host after an update");
    destroy(executable, graph);
    DRIVER_OK(cuMemFree(result));
    DRIVER_OK(cuModuleUnload(module));
}

int run(int argc, char** argv) {
    Program program("graph_parts", argc, argv);
    const Device device;
    const GraphWork work;
    program.section("captured_launches", [&] { captured_launches(work); });
    program.section("cooperative_later", [&] { cooperative_later(work); });
    program.section("freed_by_program", [] { freed_by_program(); });
    program.section("freed_by_graphs", [] { freed_by_graphs(); });
    program.section("freed_on_launch", [] { freed_on_launch(); });
    program.section("memory_with_host", [&] { memory_with_host(work); });
    program.section("conditions", [&] { conditions(work, device); });
    program.section("nested_conditions", [&] { nested_conditions(work, device); });
    program.section("refused_conditions", [&] { refused_conditions(device); });
    program.section("conditions_and_host", [&] { conditions_and_host(work, device); });
    program.section("loop", [&] { loop(work, device); });
    program.section("counted_objects", [] { counted_objects(); });
    program.section("objects_of_graphs", [&] { objects_of_graphs(work); });
    program.section("objects_of_executables", [&] { objects_of_executables(work); });
    program.section("moved_child", [&] { moved_child(work); });
    program.section("launched_by_kernels", [&] { launched_by_kernels(work); });
    return program.finish();
}

}  // namespace
}  // namespace gpupool::programs

int main(int argc, char** argv) {
    return gpupool::programs::run(argc, argv);
}
