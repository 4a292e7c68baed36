// Calls of graphs that other programs here do not make: queries and changes of every kind of node, and the first
// versions of calls, which programs of older toolkits make.
//
// Threads: one, and the driver's. Errors: as in driver.h.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/gpu/graphs.h"

namespace gpupool::programs {
namespace {

constexpr unsigned kWords = GraphWork::kWords;

// The version of a call that a program of that CUDA version gets.
template <class Function>
Function version_of(const char* name, int version) {
    void* address = nullptr;
    CUdriverProcAddressQueryResult status{};
    DRIVER_OK(cuGetProcAddress(name, &address, version, CU_GET_PROC_ADDRESS_DEFAULT, &status));
    if (address == nullptr) {
        give_up(name, "no such version", __FILE__, __LINE__);
    }
    return reinterpret_cast<Function>(address);
}

struct Kernel {
    CUdeviceptr data;
    unsigned count = kWords, value;
    void* addresses[3] = {&data, &count, &value};

    Kernel(const GraphWork& work, unsigned added) : data(work.device), value(added) {}
    Kernel(const Kernel&) = delete;
    Kernel& operator=(const Kernel&) = delete;

    template <class Parameters>
    Parameters node(const GraphWork& work) {
        Parameters made{};
        made.func = work.add;
        made.gridDimX = GraphWork::kBlocks;
        made.blockDimX = GraphWork::kThreads;
        made.gridDimY = made.gridDimZ = made.blockDimY = made.blockDimZ = 1;
        made.kernelParams = addresses;
        return made;
    }
};

CUDA_MEMSET_NODE_PARAMS fill(const GraphWork& work, unsigned value) {
    return {work.device, 0, value, 4, kWords, 1};
}

unsigned first_word(const GraphWork& work) {
    unsigned word = 0;
    DRIVER_OK(cuCtxSynchronize());
    DRIVER_OK(cuMemcpyDtoH(&word, work.device, sizeof word));
    return word;
}

unsigned launched(const GraphWork& work, CUgraphExec executable) {
    DRIVER_OK(cuGraphLaunch(executable, work.stream));
    return first_word(work);
}

void CUDA_CB count(void* counter) {
    static_cast<std::atomic<int>*>(counter)->fetch_add(1);
}

// ---- the first versions

void first_versions(const GraphWork& work, const Device& device) {
    CUgraph graph = nullptr;
    DRIVER_OK(cuGraphCreate(&graph, 0));
    Kernel one(work, 3), other(work, 5);
    const auto parameters = one.node<CUDA_KERNEL_NODE_PARAMS_v1>(work);
    CUgraphNode set = nullptr, add = nullptr;
    const CUDA_MEMSET_NODE_PARAMS ten = fill(work, 10);
    DRIVER_OK(cuGraphAddMemsetNode(&set, graph, nullptr, 0, &ten, device.context()));
    using AddKernel =
        CUresult (*)(CUgraphNode*, CUgraph, const CUgraphNode*, size_t, const CUDA_KERNEL_NODE_PARAMS_v1*);
    DRIVER_OK(version_of<AddKernel>("cuGraphAddKernelNode", 10000)(&add, graph, nullptr, 0, &parameters));
    using Edges = CUresult (*)(CUgraph, const CUgraphNode*, const CUgraphNode*, size_t);
    const auto connect = version_of<Edges>("cuGraphAddDependencies", 10000);
    DRIVER_OK(connect(graph, &set, &add, 1));
    DRIVER_OK(version_of<Edges>("cuGraphRemoveDependencies", 10000)(graph, &set, &add, 1));
    size_t edges = 9;
    CUgraphNode from[4] = {}, to[4] = {};
    using GetEdges = CUresult (*)(CUgraph, CUgraphNode*, CUgraphNode*, size_t*);
    const auto get_edges = version_of<GetEdges>("cuGraphGetEdges", 10000);
    DRIVER_OK(get_edges(graph, nullptr, nullptr, &edges));
    check(edges == 0, "an edge was removed: %zu are left", edges);
    DRIVER_OK(connect(graph, &set, &add, 1));
    edges = std::size(from);
    DRIVER_OK(get_edges(graph, from, to, &edges));
    check(edges == 1 && from[0] == set && to[0] == add, "the edge is back");
    using Neighbours = CUresult (*)(CUgraphNode, CUgraphNode*, size_t*);
    size_t near = std::size(from);
    DRIVER_OK(version_of<Neighbours>("cuGraphNodeGetDependencies", 10000)(add, from, &near));
    check(near == 1 && from[0] == set, "what a node depends on");
    near = std::size(from);
    DRIVER_OK(version_of<Neighbours>("cuGraphNodeGetDependentNodes", 10000)(set, from, &near));
    check(near == 1 && from[0] == add, "what depends on a node");
    CUDA_KERNEL_NODE_PARAMS_v1 seen{};
    using GetKernel = CUresult (*)(CUgraphNode, CUDA_KERNEL_NODE_PARAMS_v1*);
    DRIVER_OK(version_of<GetKernel>("cuGraphKernelNodeGetParams", 10000)(add, &seen));
    check(seen.func == work.add && seen.gridDimX == GraphWork::kBlocks &&
              *static_cast<unsigned*>(seen.kernelParams[2]) == 3,
          "a kernel's parameters");

    CUgraphExec executable = nullptr;
    CUgraphNode error_node = nullptr;
    char log[64] = "x";
    using Instantiate = CUresult (*)(CUgraphExec*, CUgraph, CUgraphNode*, char*, size_t);
    DRIVER_OK(version_of<Instantiate>("cuGraphInstantiate", 10000)(&executable, graph, &error_node, log, sizeof log));
    check(launched(work, executable) == 13, "instantiated and launched");
    const auto changed = other.node<CUDA_KERNEL_NODE_PARAMS_v1>(work);
    using SetExec = CUresult (*)(CUgraphExec, CUgraphNode, const CUDA_KERNEL_NODE_PARAMS_v1*);
    DRIVER_OK(version_of<SetExec>("cuGraphExecKernelNodeSetParams", 10010)(executable, add, &changed));
    check(launched(work, executable) == 15, "the executable's kernel was changed");
    using SetKernel = CUresult (*)(CUgraphNode, const CUDA_KERNEL_NODE_PARAMS_v1*);
    other.value = 7;
    DRIVER_OK(version_of<SetKernel>("cuGraphKernelNodeSetParams", 10000)(add, &changed));
    CUgraphExecUpdateResult outcome = CU_GRAPH_EXEC_UPDATE_ERROR;
    using Update = CUresult (*)(CUgraphExec, CUgraph, CUgraphNode*, CUgraphExecUpdateResult*);
    DRIVER_OK(version_of<Update>("cuGraphExecUpdate", 10020)(executable, graph, &error_node, &outcome));
    check(outcome == CU_GRAPH_EXEC_UPDATE_SUCCESS && launched(work, executable) == 17, "updated from the graph");
    DRIVER_OK(cuGraphExecDestroy(executable));
    DRIVER_OK(version_of<Instantiate>("cuGraphInstantiate", 11000)(&executable, graph, &error_node, log, sizeof log));
    check(launched(work, executable) == 17, "the second version of cuGraphInstantiate");
    DRIVER_OK(cuGraphExecDestroy(executable));
    DRIVER_OK(cuGraphDestroy(graph));
}

// ---- changes

void kernels_and_fills(const GraphWork& work, const Device& device) {
    CUgraph graph = nullptr;
    DRIVER_OK(cuGraphCreate(&graph, 0));
    Kernel one(work, 3);
    auto parameters = one.node<CUDA_KERNEL_NODE_PARAMS>(work);
    CUgraphNode set = nullptr, add = nullptr, second = nullptr;
    CUDA_MEMSET_NODE_PARAMS filled = fill(work, 10), seen{};
    DRIVER_OK(cuGraphAddMemsetNode(&set, graph, nullptr, 0, &filled, device.context()));
    DRIVER_OK(cuGraphAddKernelNode(&add, graph, &set, 1, &parameters));
    DRIVER_OK(cuGraphAddKernelNode(&second, graph, &add, 1, &parameters));
    filled.value = 20;
    DRIVER_OK(cuGraphMemsetNodeSetParams(set, &filled));
    DRIVER_OK(cuGraphMemsetNodeGetParams(set, &seen));
    check(seen.dst == work.device && seen.value == 20 && seen.width == kWords && seen.elementSize == 4, "a fill");
    CUkernelNodeAttrValue value{};
    value.priority = -1;
    DRIVER_OK(cuGraphKernelNodeSetAttribute(add, CU_LAUNCH_ATTRIBUTE_PRIORITY, &value));
    DRIVER_OK(cuGraphKernelNodeCopyAttributes(second, add));
    std::memset(&value, 0, sizeof value);
    DRIVER_OK(cuGraphKernelNodeGetAttribute(second, CU_LAUNCH_ATTRIBUTE_PRIORITY, &value));
    check(value.priority == -1, "a copied attribute: %d", value.priority);
    CUDA_GRAPH_INSTANTIATE_PARAMS how{};
    how.flags = CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD | CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
    how.hUploadStream = work.stream;
    CUgraphExec executable = nullptr;
    DRIVER_OK(cuGraphInstantiateWithParams(&executable, graph, &how));
    check(how.result_out == CUDA_GRAPH_INSTANTIATE_SUCCESS, "instantiated with parameters: %d", how.result_out);
    check(launched(work, executable) == 26, "a fill and two kernels");
    cuuint64_t flags = 0;
    DRIVER_OK(cuGraphExecGetFlags(executable, &flags));
    note("its flags: %llu", static_cast<unsigned long long>(flags));  // driver 580 returns 0

    CUgraphNodeParams any{};
    any.type = CU_GRAPH_NODE_TYPE_MEMSET;
    any.memset = {work.device, 0, 30, 4, kWords, 1, device.context()};
    DRIVER_OK(cuGraphExecNodeSetParams(executable, set, &any));
    check(launched(work, executable) == 36, "the executable's fill was changed");
    any.memset.value = 40;
    DRIVER_OK(cuGraphNodeSetParams(set, &any));
    DRIVER_OK(cuGraphMemsetNodeGetParams(set, &seen));
    check(seen.value == 40, "the graph's fill was changed");
    DRIVER_OK(cuGraphExecDestroy(executable));
    DRIVER_OK(cuGraphDestroy(graph));
}

// A node that names no context gets that of its memory, whatever is current.
void no_context(const GraphWork& work, const Device& device) {
    CUgraph graph = nullptr;
    CUgraphNode set = nullptr, copy = nullptr;
    DRIVER_OK(cuGraphCreate(&graph, 0));
    const CUDA_MEMSET_NODE_PARAMS filled = fill(work, 10);
    const CUDA_MEMCPY3D out = copy_out(work);
    DRIVER_OK(cuGraphAddMemsetNode(&set, graph, nullptr, 0, &filled, nullptr));
    DRIVER_OK(cuGraphAddMemcpyNode(&copy, graph, &set, 1, &out, nullptr));
    CUgraphExec executable = instantiate(graph);
    std::memset(work.host_out, 0, GraphWork::kBytes);
    DRIVER_OK(cuGraphLaunch(executable, work.stream));
    DRIVER_OK(cuStreamSynchronize(work.stream));
    check(work.host_holds(10), "a fill and a copy to the host");
    DRIVER_OK(cuGraphExecDestroy(executable));

    CUgraphNodeParams any{};
    any.type = CU_GRAPH_NODE_TYPE_MEMSET;
    any.memset = {work.device, 0, 30, 4, kWords, 1, nullptr};
    DRIVER_OK(cuGraphNodeSetParams(set, &any));
    DRIVER_OK(cuCtxSetCurrent(nullptr));
    const CUresult added = cuGraphAddMemsetNode(&set, graph, &copy, 1, &filled, nullptr);
    DRIVER_OK(cuCtxSetCurrent(device.context()));
    check_result(added, CUDA_SUCCESS, "a fill, without a current context");
    executable = instantiate(graph);
    check(launched(work, executable) == 10, "the last fill decides");
    check(work.host_holds(30), "the changed fill was copied before");
    DRIVER_OK(cuGraphExecDestroy(executable));

    // Memory that belongs to no context can be copied, but not filled.
    CUdeviceptr pooled = 0;
    DRIVER_OK(cuMemAllocAsync(&pooled, GraphWork::kBytes, work.stream));
    DRIVER_OK(cuStreamSynchronize(work.stream));
    CUDA_MEMSET_NODE_PARAMS fill_pooled = filled;
    fill_pooled.dst = pooled;
    check_result(cuGraphAddMemsetNode(&set, graph, nullptr, 0, &fill_pooled, nullptr), CUDA_ERROR_INVALID_VALUE,
                 "a fill of a pool's memory");
    check_result(cuGraphAddMemsetNode(&set, graph, nullptr, 0, &fill_pooled, device.context()), CUDA_SUCCESS,
                 "with a context");
    CUDA_MEMCPY3D copy_pooled = out;
    copy_pooled.srcDevice = pooled;
    DRIVER_OK(cuCtxSetCurrent(nullptr));
    const CUresult copied = cuGraphAddMemcpyNode(&copy, graph, nullptr, 0, &copy_pooled, nullptr);
    DRIVER_OK(cuCtxSetCurrent(device.context()));
    check_result(copied, CUDA_SUCCESS, "a copy of a pool's memory, without a current context");
    DRIVER_OK(cuGraphDestroy(graph));
    DRIVER_OK(cuMemFree(pooled));
}

void copies_and_functions(const GraphWork& work, const Device& device) {
    std::atomic<int> calls{0}, others{0};
    CUgraph graph = nullptr;
    DRIVER_OK(cuGraphCreate(&graph, 0));
    CUgraphNode copy = nullptr, function = nullptr;
    CUDA_MEMCPY3D out = copy_out(work), seen{};
    DRIVER_OK(cuGraphAddMemcpyNode(&copy, graph, nullptr, 0, &out, device.context()));
    CUDA_HOST_NODE_PARAMS host{count, &calls}, asked{};
    DRIVER_OK(cuGraphAddHostNode(&function, graph, &copy, 1, &host));
    DRIVER_OK(cuGraphHostNodeGetParams(function, &asked));
    check(asked.fn == count && asked.userData == &calls, "a host function");
    DRIVER_OK(cuGraphMemcpyNodeGetParams(copy, &seen));
    check(seen.dstHost == work.host_out && seen.srcDevice == work.device && seen.WidthInBytes == out.WidthInBytes,
          "a copy");
    CUgraphExec executable = instantiate(graph);
    DRIVER_OK(cuMemsetD32(work.device, 4, kWords));
    work.fill_host(0);
    DRIVER_OK(cuCtxSynchronize());
    DRIVER_OK(cuGraphLaunch(executable, work.stream));
    DRIVER_OK(cuStreamSynchronize(work.stream));
    check(work.host_holds(4) && calls == 1, "copied, and the function ran");
    out.dstHost = work.host_in;
    DRIVER_OK(cuGraphExecMemcpyNodeSetParams(executable, copy, &out, device.context()));
    host.userData = &others;
    DRIVER_OK(cuGraphExecHostNodeSetParams(executable, function, &host));
    work.fill_host(0);
    DRIVER_OK(cuGraphLaunch(executable, work.stream));
    DRIVER_OK(cuStreamSynchronize(work.stream));
    check(work.host_in[0] == 4 && work.host_holds(0) && calls == 1 && others == 1,
          "copied elsewhere, another argument");
    DRIVER_OK(cuGraphExecDestroy(executable));
    DRIVER_OK(cuGraphMemcpyNodeSetParams(copy, &out));
    DRIVER_OK(cuGraphHostNodeSetParams(function, &host));
    DRIVER_OK(cuGraphHostNodeGetParams(function, &asked));
    DRIVER_OK(cuGraphMemcpyNodeGetParams(copy, &seen));
    check(asked.userData == &others && seen.dstHost == work.host_in, "the graph was changed likewise");
    DRIVER_OK(cuGraphDestroy(graph));
}

void events(const GraphWork& work) {
    CUevent first = nullptr, second = nullptr, never = nullptr, seen = nullptr;
    for (CUevent* const made : {&first, &second, &never}) {
        DRIVER_OK(cuEventCreate(made, CU_EVENT_DISABLE_TIMING));
    }
    CUgraph graph = nullptr;
    CUgraphNode record = nullptr, wait = nullptr;
    DRIVER_OK(cuGraphCreate(&graph, 0));
    DRIVER_OK(cuGraphAddEventWaitNode(&wait, graph, nullptr, 0, first));
    DRIVER_OK(cuGraphAddEventRecordNode(&record, graph, &wait, 1, first));
    DRIVER_OK(cuGraphEventRecordNodeSetEvent(record, second));
    DRIVER_OK(cuGraphEventRecordNodeGetEvent(record, &seen));
    check(seen == second, "the event that a node records");
    DRIVER_OK(cuGraphEventWaitNodeSetEvent(wait, second));
    DRIVER_OK(cuGraphEventWaitNodeGetEvent(wait, &seen));
    check(seen == second, "the event that a node waits for");
    const CUgraphExec executable = instantiate(graph);
    DRIVER_OK(cuGraphExecEventRecordNodeSetEvent(executable, record, first));
    DRIVER_OK(cuGraphExecEventWaitNodeSetEvent(executable, wait, never));
    DRIVER_OK(cuGraphLaunch(executable, work.stream));
    check_result(cuEventSynchronize(first), CUDA_SUCCESS, "the recorded event");
    DRIVER_OK(cuGraphExecDestroy(executable));
    DRIVER_OK(cuGraphDestroy(graph));
    for (const CUevent made : {first, second, never}) {
        DRIVER_OK(cuEventDestroy(made));
    }
}

CUstreamBatchMemOpParams write_word(CUdeviceptr address, unsigned value) {
    CUstreamBatchMemOpParams operation;
    std::memset(static_cast<void*>(&operation), 0, sizeof operation);
    operation.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    operation.writeValue.address = address;
    operation.writeValue.value = value;
    return operation;
}

void memory_operations(const GraphWork& work, const Device& device) {
    CUgraph graph = nullptr;
    CUgraphNode node = nullptr;
    DRIVER_OK(cuGraphCreate(&graph, 0));
    CUstreamBatchMemOpParams operation = write_word(work.device, 11);
    CUDA_BATCH_MEM_OP_NODE_PARAMS parameters{device.context(), 1, &operation, 0}, seen{};
    DRIVER_OK(cuGraphAddBatchMemOpNode(&node, graph, nullptr, 0, &parameters));
    operation.writeValue.value = 12;
    DRIVER_OK(cuGraphBatchMemOpNodeSetParams(node, &parameters));
    DRIVER_OK(cuGraphBatchMemOpNodeGetParams(node, &seen));
    check(seen.count == 1 && seen.paramArray[0].writeValue.value == 12, "memory operations");
    const CUgraphExec executable = instantiate(graph);
    check(launched(work, executable) == 12, "a word was written");
    operation.writeValue.value = 13;
    DRIVER_OK(cuGraphExecBatchMemOpNodeSetParams(executable, node, &parameters));
    check(launched(work, executable) == 13, "another word was written");
    DRIVER_OK(cuGraphExecDestroy(executable));
    DRIVER_OK(cuGraphDestroy(graph));
}

void child_graphs(const GraphWork& work, const Device& device) {
    CUgraph child = nullptr, graph = nullptr, found = nullptr, other = nullptr;
    CUgraphNode set = nullptr, node = nullptr;
    const CUDA_MEMSET_NODE_PARAMS five = fill(work, 5), six = fill(work, 6);
    for (CUgraph* const made : {&child, &graph, &other}) {
        DRIVER_OK(cuGraphCreate(made, 0));
    }
    DRIVER_OK(cuGraphAddMemsetNode(&set, child, nullptr, 0, &five, device.context()));
    DRIVER_OK(cuGraphAddMemsetNode(&set, other, nullptr, 0, &six, device.context()));
    DRIVER_OK(cuGraphAddChildGraphNode(&node, graph, nullptr, 0, child));
    DRIVER_OK(cuGraphChildGraphNodeGetGraph(node, &found));
    check(found != child && node_count(found) == 1, "the graph within a node");
    const CUgraphExec executable = instantiate(graph);
    check(launched(work, executable) == 5, "a child graph");
    DRIVER_OK(cuGraphExecChildGraphNodeSetParams(executable, node, other));
    check(launched(work, executable) == 6, "another child graph");
    const std::string path = "/tmp/gpupool-graph-calls-" + std::to_string(getpid());
    check_result(cuGraphDebugDotPrint(graph, path.c_str(), 0), CUDA_SUCCESS, "cuGraphDebugDotPrint");
    std::ifstream file(path);
    const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    check(text.find("digraph") != std::string::npos, "%zu characters of DOT", text.size());
    unlink(path.c_str());
    DRIVER_OK(cuGraphExecDestroy(executable));
    for (const CUgraph made : {child, graph, other}) {
        DRIVER_OK(cuGraphDestroy(made));
    }
}

void memory_nodes(const GraphWork& work, const Device& device) {
    CUgraph graph = nullptr;
    CUgraphNode allocate = nullptr, set = nullptr, release = nullptr;
    DRIVER_OK(cuGraphCreate(&graph, 0));
    CUDA_MEM_ALLOC_NODE_PARAMS parameters{}, seen{};
    parameters.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    parameters.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, device.device()};
    parameters.bytesize = 1u << 20;
    DRIVER_OK(cuGraphAddMemAllocNode(&allocate, graph, nullptr, 0, &parameters));
    DRIVER_OK(cuGraphMemAllocNodeGetParams(allocate, &seen));
    check(seen.dptr == parameters.dptr && seen.dptr != 0 && seen.bytesize == parameters.bytesize, "an allocation");
    CUgraphNodeParams any{};
    any.type = CU_GRAPH_NODE_TYPE_MEMSET;
    any.memset = {seen.dptr, 0, 1, 4, 16, 1, device.context()};
    DRIVER_OK(cuGraphAddNode(&set, graph, &allocate, nullptr, 1, &any));
    DRIVER_OK(cuGraphAddMemFreeNode(&release, graph, &set, 1, seen.dptr));
    check_result(cuGraphAddMemFreeNode(&release, graph, &set, 1, seen.dptr), CUDA_ERROR_INVALID_VALUE, "freed twice");
    CUgraphNode nodes[4] = {};
    size_t count_of = std::size(nodes);
    DRIVER_OK(cuGraphGetNodes(graph, nodes, &count_of));
    CUdeviceptr freed = 0;
    DRIVER_OK(cuGraphMemFreeNodeGetParams(nodes[2], &freed));
    check(count_of == 3 && freed == seen.dptr, "what a node frees");
    const CUgraphExec executable = instantiate(graph);
    cuuint64_t used = 0, high = 0, reserved = 0, reset = 0;
    DRIVER_OK(cuGraphLaunch(executable, work.stream));
    DRIVER_OK(cuStreamSynchronize(work.stream));
    DRIVER_OK(cuDeviceGetGraphMemAttribute(device.device(), CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &reserved));
    DRIVER_OK(cuDeviceGetGraphMemAttribute(device.device(), CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, &high));
    check(reserved >= parameters.bytesize && high >= parameters.bytesize, "%llu bytes reserved, at most %llu used",
          static_cast<unsigned long long>(reserved), static_cast<unsigned long long>(high));
    DRIVER_OK(cuGraphExecDestroy(executable));
    DRIVER_OK(cuGraphDestroy(graph));
    DRIVER_OK(cuDeviceGraphMemTrim(device.device()));
    DRIVER_OK(cuDeviceGetGraphMemAttribute(device.device(), CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &used));
    check(used < reserved, "trimmed to %llu bytes", static_cast<unsigned long long>(used));
    DRIVER_OK(cuDeviceSetGraphMemAttribute(device.device(), CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH, &reset));
    DRIVER_OK(cuDeviceGetGraphMemAttribute(device.device(), CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH, &high));
    check(high == used, "the greatest number was reset to the present one");
}

void capture_to_graph(const GraphWork& work, const Device& device) {
    CUgraph graph = nullptr, captured = nullptr;
    CUgraphNode set = nullptr;
    DRIVER_OK(cuGraphCreate(&graph, 0));
    const CUDA_MEMSET_NODE_PARAMS ten = fill(work, 10);
    DRIVER_OK(cuGraphAddMemsetNode(&set, graph, nullptr, 0, &ten, device.context()));
    DRIVER_OK(cuStreamBeginCaptureToGraph(work.stream, graph, &set, nullptr, 1, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    DRIVER_OK(launch(work.add, GraphWork::kBlocks, GraphWork::kThreads, work.stream, work.device, kWords, 4u));
    DRIVER_OK(cuStreamEndCapture(work.stream, &captured));
    check(captured == graph && node_count(graph) == 2, "captured into a graph that exists");
    CUgraphNode near[2] = {};
    CUgraphEdgeData data[2] = {};
    size_t count_of = std::size(near);
    DRIVER_OK(cuGraphNodeGetDependentNodes(set, near, data, &count_of));
    check(count_of == 1, "behind its node");
    DRIVER_OK(cuStreamBeginCaptureToGraph(work.stream, graph, near, nullptr, 1, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    check_result(cuStreamEndCapture(work.stream, nullptr), CUDA_SUCCESS, "the end needs no place for that graph");
    DRIVER_OK(cuGraphRemoveDependencies(graph, &set, near, data, 1));
    DRIVER_OK(cuGraphAddDependencies(graph, &set, near, data, 1));
    const CUgraphExec executable = instantiate(graph);
    check(launched(work, executable) == 14, "and launched");
    DRIVER_OK(cuGraphExecDestroy(executable));
    DRIVER_OK(cuGraphDestroy(graph));
}

int run(int argc, char** argv) {
    Program program("graph_calls", argc, argv);
    const Device device;
    const GraphWork work;
    program.section("first_versions", [&] { first_versions(work, device); });
    program.section("kernels_and_fills", [&] { kernels_and_fills(work, device); });
    program.section("no_context", [&] { no_context(work, device); });
    program.section("copies_and_functions", [&] { copies_and_functions(work, device); });
    program.section("events", [&] { events(work); });
    program.section("memory_operations", [&] { memory_operations(work, device); });
    program.section("child_graphs", [&] { child_graphs(work, device); });
    program.section("memory_nodes", [&] { memory_nodes(work, device); });
    program.section("capture_to_graph", [&] { capture_to_graph(work, device); });
    return program.finish();
}

}  // namespace
}  // namespace gpupool::programs

int main(int argc, char** argv) {
    return gpupool::programs::run(argc, argv);
}
