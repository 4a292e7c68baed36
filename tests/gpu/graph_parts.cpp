// What graphs hold beside kernels and copies: cooperative launches, memory of their own, parts that the program's side
// executes, conditional nodes and user objects.
//
// Threads: one, and the driver's. Errors: as in driver.h.
#include "tests/gpu/graph_parts.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <semaphore>
#include <thread>
#include <vector>

namespace gpupool::programs {
namespace {

constexpr size_t kBytes = 64u << 10;

CUstream make_stream() {
    CUstream stream = nullptr;
    DRIVER_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    return stream;
}

void begin_capture(CUstream stream) {
    DRIVER_OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
}

CUgraph end_capture(CUstream stream) {
    CUgraph graph = nullptr;
    DRIVER_OK(cuStreamEndCapture(stream, &graph));
    return graph;
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
    const CUgraphExec executable = instantiate(graph);
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
    const CUgraphExec executable = instantiate(graph);
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
    const CUgraphExec executable = instantiate(graph);
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
    const CUgraphExec executable = instantiate(made.graph);
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
    const CUgraphExec frees_own = instantiate(own.graph);
    for (int i = 0; i < 2; ++i) {
        DRIVER_OK(cuGraphLaunch(frees_own, stream));
        DRIVER_OK(cuStreamSynchronize(stream));
        is_allocated(own.memory, false, "the graph has freed it");
    }
    destroy(frees_own, own.graph);

    const Allocating made = allocating(stream, false);
    const CUgraphExec executable = instantiate(made.graph);
    DRIVER_OK(cuGraphLaunch(executable, stream));
    begin_capture(stream);
    DRIVER_OK(cuMemFreeAsync(made.memory, stream));
    const CUgraph freeing = end_capture(stream);
    const CUgraphExec frees = instantiate(freeing);
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

// cuMemFree is allowed while another thread captures, and leaves the capture valid.
void freed_beside_capture() {
    CUstream stream = make_stream();
    const Allocating made = allocating(stream, false);
    const CUgraphExec executable = instantiate(made.graph);
    CUcontext context = nullptr;
    DRIVER_OK(cuCtxGetCurrent(&context));
    for (const unsigned flags : {CU_STREAM_DEFAULT, CU_STREAM_NON_BLOCKING}) {
        for (const CUstreamCaptureMode mode : {CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_RELAXED}) {
            CUstream capturing = nullptr;
            DRIVER_OK(cuStreamCreate(&capturing, flags));
            DRIVER_OK(cuGraphLaunch(executable, stream));
            std::binary_semaphore began(0), freed(0);
            std::thread other([&] {
                DRIVER_OK(cuCtxSetCurrent(context));
                DRIVER_OK(cuStreamBeginCapture(capturing, mode));
                began.release();
                freed.acquire();
                CUgraph graph = nullptr;
                check_result(cuStreamEndCapture(capturing, &graph), CUDA_SUCCESS, "the capture is valid");
                DRIVER_OK(cuGraphDestroy(graph));
            });
            began.acquire();
            check_result(cuMemFree(made.memory), CUDA_SUCCESS, "cuMemFree while another thread captures");
            freed.release();
            other.join();
            is_allocated(made.memory, false, "freed beside a capture");
            DRIVER_OK(cuStreamDestroy(capturing));
        }
    }
    DRIVER_OK(cuGraphLaunch(executable, stream));
    DRIVER_OK(cuStreamSynchronize(stream));
    check(word_at(made.memory) == 0x07070707, "it can be allocated again");
    DRIVER_OK(cuMemFree(made.memory));
    destroy(executable, made.graph);
    DRIVER_OK(cuStreamDestroy(stream));
}

// A launch or a free that the driver refuses has no effect.
void refused_while_capturing() {
    CUstream stream = make_stream(), capturing = nullptr;
    DRIVER_OK(cuStreamCreate(&capturing, CU_STREAM_DEFAULT));
    const Allocating made = allocating(stream, false);
    const CUgraphExec executable = instantiate(made.graph);
    const auto in_capture = [&](const char* what, auto call) {
        DRIVER_OK(cuStreamBeginCapture(capturing, CU_STREAM_CAPTURE_MODE_RELAXED));
        check_result(call(), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, what);
        CUgraph graph = nullptr;
        check_result(cuStreamEndCapture(capturing, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, what);
    };
    for (int i = 0; i < 2; ++i) {
        in_capture("a launch in the legacy stream", [&] { return cuGraphLaunch(executable, CU_STREAM_LEGACY); });
        is_allocated(made.memory, false, "not launched");
        check_result(cuGraphLaunch(executable, stream), CUDA_SUCCESS, "launched after that");
        DRIVER_OK(cuStreamSynchronize(stream));
        in_capture("a free in the legacy stream", [&] { return cuMemFreeAsync(made.memory, CU_STREAM_LEGACY); });
        is_allocated(made.memory, true, "not freed");
        check(word_at(made.memory) == 0x07070707, "its content after the free that was refused");
        check_result(cuMemFreeAsync(made.memory, stream), CUDA_SUCCESS, "freed after that");
        DRIVER_OK(cuStreamSynchronize(stream));
    }
    destroy(executable, made.graph);
    DRIVER_OK(cuStreamDestroy(capturing));
    DRIVER_OK(cuStreamDestroy(stream));
}

// The memory of a capture that ended without a graph. Other graphs may get its address.
void of_invalid_capture() {
    CUstream stream = make_stream();
    for (int i = 0; i < 2; ++i) {
        CUdeviceptr memory = 0;
        begin_capture(stream);
        DRIVER_OK(cuMemAllocAsync(&memory, kBytes, stream));
        check_result(cuStreamSynchronize(stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "a wait in the capture");
        CUgraph graph = nullptr;
        check_result(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "its end");
        is_allocated(memory, false, "of an invalid capture");
        const Allocating made = allocating(stream, false);
        const CUgraphExec executable = instantiate(made.graph);
        DRIVER_OK(cuGraphLaunch(executable, stream));
        DRIVER_OK(cuStreamSynchronize(stream));
        is_allocated(made.memory, true, "of a graph captured later");
        DRIVER_OK(cuMemFree(made.memory));
        destroy(executable, made.graph);
    }
    DRIVER_OK(cuStreamDestroy(stream));
}

void freed_on_launch() {
    CUstream stream = make_stream();
    const Allocating made = allocating(stream, false);
    const CUgraphExec executable = instantiate(made.graph, CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
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
        const CUgraphExec executable = instantiate(graph);
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
    const CUgraphExec executable = instantiate(parent);
    for (int i = 0; i < 2; ++i) {
        DRIVER_OK(cuGraphLaunch(executable, work.stream));
        DRIVER_OK(cuStreamSynchronize(work.stream));
        is_allocated(made.memory, false, "it frees its memory");
    }
    destroy(executable, parent);
}

int run(int argc, char** argv) {
    Program program("graph_parts", argc, argv);
    const Device device;
    const GraphWork work;
    program.section("captured_launches", [&] { captured_launches(work); });
    program.section("cooperative_later", [&] { cooperative_later(work); });
    program.section("freed_by_program", [] { freed_by_program(); });
    program.section("freed_by_graphs", [] { freed_by_graphs(); });
    program.section("freed_beside_capture", [] { freed_beside_capture(); });
    program.section("refused_while_capturing", [] { refused_while_capturing(); });
    program.section("of_invalid_capture", [] { of_invalid_capture(); });
    program.section("freed_on_launch", [] { freed_on_launch(); });
    program.section("memory_with_host", [&] { memory_with_host(work); });
    program.section("conditions", [&] { conditions(work, device); });
    program.section("nested_conditions", [&] { nested_conditions(work, device); });
    program.section("refused_conditions", [&] { refused_conditions(device); });
    program.section("conditions_and_host", [&] { conditions_and_host(work, device); });
    program.section("loop", [&] { loop(work, device); });
    program.section("counted_objects", [] { counted_objects(); });
    program.section("objects_of_graphs", [&] { objects_of_graphs(work); });
    program.section("objects_of_captures", [&] { objects_of_captures(work); });
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
