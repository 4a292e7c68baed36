// Graphs: built node by node, captured from streams, launched many times, changed between launches.
#include "tests/gpu/graphs.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

namespace gpupool::programs {

namespace {

// Kernel parameters whose addresses are valid as long as this object.
struct AddParameters {
    CUdeviceptr data;
    unsigned count;
    unsigned value;
    void* addresses[3];
    CUDA_KERNEL_NODE_PARAMS node{};

    AddParameters(const GraphWork& work, unsigned added) : data(work.device), count(GraphWork::kWords), value(added) {
        addresses[0] = &data;
        addresses[1] = &count;
        addresses[2] = &value;
        node.func = work.add;
        node.gridDimX = GraphWork::kBlocks;
        node.gridDimY = node.gridDimZ = 1;
        node.blockDimX = GraphWork::kThreads;
        node.blockDimY = node.blockDimZ = 1;
        node.kernelParams = addresses;
    }
    AddParameters(const AddParameters&) = delete;
    AddParameters& operator=(const AddParameters&) = delete;
};

CUDA_MEMSET_NODE_PARAMS set_all(const GraphWork& work, unsigned value) {
    CUDA_MEMSET_NODE_PARAMS parameters{};
    parameters.dst = work.device;
    parameters.value = value;
    parameters.elementSize = 4;
    parameters.width = GraphWork::kWords;
    parameters.height = 1;
    return parameters;
}

struct Chain {
    CUgraph graph = nullptr;
    CUgraphNode set = nullptr, first = nullptr, second = nullptr, out = nullptr;
};

// memset to `start`, two additions, copy to the host.
Chain build_chain(const GraphWork& work, const Device& device, unsigned start, unsigned first, unsigned second) {
    Chain chain;
    const AddParameters one(work, first), two(work, second);
    const CUDA_MEMSET_NODE_PARAMS set = set_all(work, start);
    const CUDA_MEMCPY3D out = copy_out(work);
    DRIVER_OK(cuGraphCreate(&chain.graph, 0));
    DRIVER_OK(cuGraphAddMemsetNode(&chain.set, chain.graph, nullptr, 0, &set, device.context()));
    DRIVER_OK(cuGraphAddKernelNode(&chain.first, chain.graph, &chain.set, 1, &one.node));
    DRIVER_OK(cuGraphAddKernelNode(&chain.second, chain.graph, nullptr, 0, &two.node));
    DRIVER_OK(cuGraphAddDependencies(chain.graph, &chain.first, &chain.second, nullptr, 1));
    DRIVER_OK(cuGraphAddMemcpyNode(&chain.out, chain.graph, &chain.second, 1, &out, device.context()));
    return chain;
}

bool run_gives(const GraphWork& work, CUgraphExec executable, unsigned expected) {
    work.fill_host(0);
    DRIVER_OK(cuGraphLaunch(executable, work.stream));
    DRIVER_OK(cuStreamSynchronize(work.stream));
    return work.host_holds(expected);
}

void explicit_graph(const GraphWork& work, const Device& device) {
    const Chain chain = build_chain(work, device, 10, 5, 7);
    check(node_count(chain.graph) == 4, "a graph of %zu nodes", node_count(chain.graph));
    size_t edges = 0, roots = 0;
    DRIVER_OK(cuGraphGetEdges(chain.graph, nullptr, nullptr, nullptr, &edges));
    DRIVER_OK(cuGraphGetRootNodes(chain.graph, nullptr, &roots));
    check(edges == 3 && roots == 1, "%zu edges, %zu root", edges, roots);
    CUgraphNodeType type{};
    DRIVER_OK(cuGraphNodeGetType(chain.set, &type));
    check(type == CU_GRAPH_NODE_TYPE_MEMSET, "type of a node");
    CUDA_KERNEL_NODE_PARAMS seen{};
    DRIVER_OK(cuGraphKernelNodeGetParams(chain.first, &seen));
    check(seen.gridDimX == GraphWork::kBlocks && seen.blockDimX == GraphWork::kThreads, "a kernel node's shape: %u, %u",
          seen.gridDimX, seen.blockDimX);
    check(seen.func == work.add, "a kernel node's function");
    check(seen.kernelParams != nullptr && *static_cast<unsigned*>(seen.kernelParams[2]) == 5,
          "a kernel node's arguments");
    CUgraphNode before = nullptr;
    size_t count = 1;
    DRIVER_OK(cuGraphNodeGetDependencies(chain.second, &before, nullptr, &count));
    check(count == 1 && before == chain.first, "a node's dependencies");

    CUgraph clone = nullptr;
    CUgraphNode cloned = nullptr;
    DRIVER_OK(cuGraphClone(&clone, chain.graph));
    DRIVER_OK(cuGraphNodeFindInClone(&cloned, chain.out, clone));
    check(node_count(clone) == 4 && cloned != chain.out, "a clone, and a node's image in it");
    const CUgraphExec executable = instantiate(chain.graph);
    const CUgraphExec of_clone = instantiate(clone);
    DRIVER_OK(cuGraphDestroy(chain.graph));
    DRIVER_OK(cuGraphDestroy(clone));
    DRIVER_OK(cuGraphUpload(executable, work.stream));
    check(run_gives(work, executable, 22) && run_gives(work, executable, 22), "memset, two kernels and a copy, twice");
    check(run_gives(work, of_clone, 22), "the clone does the same");
    DRIVER_OK(cuGraphExecDestroy(of_clone));
    DRIVER_OK(cuGraphExecDestroy(executable));
}

void updates(const GraphWork& work, const Device& device) {
    const Chain chain = build_chain(work, device, 1, 1, 1);
    const CUgraphExec executable = instantiate(chain.graph);
    check(run_gives(work, executable, 3), "before any change");
    const AddParameters changed(work, 100);
    DRIVER_OK(cuGraphExecKernelNodeSetParams(executable, chain.second, &changed.node));
    check(run_gives(work, executable, 102), "one kernel's parameters changed");
    const CUDA_MEMSET_NODE_PARAMS set = set_all(work, 1000);
    DRIVER_OK(cuGraphExecMemsetNodeSetParams(executable, chain.set, &set, device.context()));
    check(run_gives(work, executable, 1101), "the memset's value changed");

    const Chain other = build_chain(work, device, 7, 70, 700);
    CUgraphExecUpdateResultInfo information{};
    DRIVER_OK(cuGraphExecUpdate(executable, other.graph, &information));
    check(information.result == CU_GRAPH_EXEC_UPDATE_SUCCESS, "updated from another graph");
    check(run_gives(work, executable, 777), "and has that graph's effect");
    CUgraphNode more = nullptr;
    DRIVER_OK(cuGraphAddKernelNode(&more, other.graph, &other.out, 1, &changed.node));
    check_result(cuGraphExecUpdate(executable, other.graph, &information), CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE,
                 "an update from a graph of another shape");
    check(run_gives(work, executable, 777), "which changed nothing");
    // Fewer nodes, the first of another type; the difference in number is reported.
    CUgraph shorter = nullptr;
    CUgraphNode only = nullptr;
    DRIVER_OK(cuGraphCreate(&shorter, 0));
    DRIVER_OK(cuGraphAddEmptyNode(&only, shorter, nullptr, 0));
    check_result(cuGraphExecUpdate(executable, shorter, &information), CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE,
                 "an update from a graph of fewer nodes");
    check(information.result == CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED && information.errorNode == nullptr,
          "says that the shape is another: %d", static_cast<int>(information.result));
    DRIVER_OK(cuGraphDestroy(shorter));
    DRIVER_OK(cuGraphDestroyNode(more));
    check(node_count(other.graph) == 4, "a node destroyed");
    DRIVER_OK(cuGraphNodeSetEnabled(executable, chain.first, 0));
    check(run_gives(work, executable, 707), "a node disabled");
    DRIVER_OK(cuGraphDestroy(other.graph));
    DRIVER_OK(cuGraphDestroy(chain.graph));
    DRIVER_OK(cuGraphExecDestroy(executable));
}

// Ends by itself: a forwarded change of an executable graph may wait for the launches before it.
void CUDA_CB sleep_briefly(void*) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

// A launch runs the graph as it was at the launch, even if the launch has to wait in its stream.
void updates_behind_waiting_launches(const GraphWork& work) {
    CUgraph graph = nullptr;
    CUgraphNode node = nullptr;
    DRIVER_OK(cuGraphCreate(&graph, 0));
    const AddParameters one(work, 1), hundred(work, 100), more(work, 10000);
    DRIVER_OK(cuGraphAddKernelNode(&node, graph, nullptr, 0, &one.node));
    const CUgraphExec executable = instantiate(graph);
    CUgraph other = nullptr;
    CUgraphNode of_other = nullptr;
    DRIVER_OK(cuGraphCreate(&other, 0));
    DRIVER_OK(cuGraphAddKernelNode(&of_other, other, nullptr, 0, &more.node));
    DRIVER_OK(cuMemsetD32(work.device, 0, GraphWork::kWords));
    DRIVER_OK(cuCtxSynchronize());

    const auto launch_behind_a_wait = [&] {
        DRIVER_OK(cuLaunchHostFunc(work.stream, sleep_briefly, nullptr));
        DRIVER_OK(cuMemcpyHtoDAsync(work.device, work.host_in, sizeof(unsigned), work.stream));
        DRIVER_OK(cuGraphLaunch(executable, work.stream));
    };
    work.fill_host(0);
    launch_behind_a_wait();
    DRIVER_OK(cuGraphExecKernelNodeSetParams(executable, node, &hundred.node));
    DRIVER_OK(cuGraphLaunch(executable, work.stream));
    check(work.device_holds(101), "parameters changed behind a launch that waits");
    DRIVER_OK(cuMemsetD32(work.device, 0, GraphWork::kWords));
    launch_behind_a_wait();
    CUgraphExecUpdateResultInfo information{};
    DRIVER_OK(cuGraphExecUpdate(executable, other, &information));
    DRIVER_OK(cuGraphLaunch(executable, work.stream));
    check(work.device_holds(10100), "updated behind a launch that waits");
    DRIVER_OK(cuMemsetD32(work.device, 0, GraphWork::kWords));
    launch_behind_a_wait();
    DRIVER_OK(cuGraphNodeSetEnabled(executable, node, 0));
    DRIVER_OK(cuGraphLaunch(executable, work.stream));
    check(work.device_holds(10000), "a node switched off behind a launch that waits");
    DRIVER_OK(cuGraphExecDestroy(executable));
    DRIVER_OK(cuGraphDestroy(other));
    DRIVER_OK(cuGraphDestroy(graph));
}

// Changes and launches alternate behind a launch that waits; then everything is destroyed without a wait.
void changes_in_turn(const GraphWork& work) {
    constexpr unsigned kChanges = 20;
    CUgraph graph = nullptr;
    CUgraphNode node = nullptr, idle = nullptr;
    DRIVER_OK(cuGraphCreate(&graph, 0));
    const AddParameters first(work, 1);
    DRIVER_OK(cuGraphAddKernelNode(&node, graph, nullptr, 0, &first.node));
    DRIVER_OK(cuGraphAddKernelNode(&idle, graph, &node, 1, &first.node));
    const CUgraphExec executable = instantiate(graph);
    DRIVER_OK(cuMemsetD32(work.device, 0, GraphWork::kWords));
    DRIVER_OK(cuCtxSynchronize());
    DRIVER_OK(cuGraphNodeSetEnabled(executable, idle, 0));
    DRIVER_OK(cuLaunchHostFunc(work.stream, sleep_briefly, nullptr));
    work.fill_host(0);
    DRIVER_OK(cuMemcpyHtoDAsync(work.device, work.host_in, sizeof(unsigned), work.stream));
    unsigned expected = 1;
    DRIVER_OK(cuGraphLaunch(executable, work.stream));
    for (unsigned i = 1; i <= kChanges; ++i) {
        const AddParameters added(work, 100 * i);
        DRIVER_OK(cuGraphExecKernelNodeSetParams(executable, node, &added.node));
        if (i % 2 == 0) {
            DRIVER_OK(cuGraphLaunch(executable, work.stream));
            expected += 100 * i;
        }
    }
    DRIVER_OK(cuGraphNodeSetEnabled(executable, idle, 1));
    DRIVER_OK(cuGraphLaunch(executable, work.stream));
    expected += 100 * kChanges + 1;
    unsigned enabled = 0;
    DRIVER_OK(cuGraphNodeGetEnabled(executable, idle, &enabled));
    check(enabled == 1, "a node is enabled");
    DRIVER_OK(cuGraphNodeSetEnabled(executable, idle, 0));
    DRIVER_OK(cuGraphDestroy(graph));
    DRIVER_OK(cuGraphExecDestroy(executable));
    check(work.device_holds(expected), "changes and launches in turn");
    DRIVER_OK(cuCtxSynchronize());
}

// The call itself refuses these nodes, and the graph remains usable.
void refused_nodes(const GraphWork& work, const Device& device) {
    const AddParameters one(work, 1);
    CUgraph graph = nullptr, other = nullptr;
    CUgraphNode node = nullptr, foreign = nullptr, refused = nullptr;
    DRIVER_OK(cuGraphCreate(&graph, 0));
    DRIVER_OK(cuGraphCreate(&other, 0));
    check_result(cuGraphCreate(&other, 1), CUDA_ERROR_INVALID_VALUE, "a graph with flags");
    DRIVER_OK(cuGraphAddKernelNode(&node, graph, nullptr, 0, &one.node));
    DRIVER_OK(cuGraphAddKernelNode(&foreign, other, nullptr, 0, &one.node));
    check(cuGraphAddKernelNode(&refused, graph, &foreign, 1, &one.node) != CUDA_SUCCESS, "behind another graph's node");
    const CUgraphNode twice[] = {node, node};
    check(cuGraphAddKernelNode(&refused, graph, twice, 2, &one.node) != CUDA_SUCCESS, "behind a node twice");
    CUDA_KERNEL_NODE_PARAMS wrong = one.node;
    wrong.gridDimX = 0;
    check(cuGraphAddKernelNode(&refused, graph, &node, 1, &wrong) != CUDA_SUCCESS, "a grid of no blocks");
    wrong = one.node;
    wrong.blockDimX = 2048;
    check(cuGraphAddKernelNode(&refused, graph, &node, 1, &wrong) != CUDA_SUCCESS, "a block of too many threads");
    CUDA_MEMSET_NODE_PARAMS set = set_all(work, 1);
    set.elementSize = 3;
    check(cuGraphAddMemsetNode(&refused, graph, &node, 1, &set, device.context()) != CUDA_SUCCESS, "elements of three");
    CUDA_HOST_NODE_PARAMS nothing{};
    check(cuGraphAddHostNode(&refused, graph, &node, 1, &nothing) != CUDA_SUCCESS, "no host function");
    check(node_count(graph) == 1, "nothing was added");
    const CUgraphExec executable = instantiate(graph);
    check(cuGraphExecKernelNodeSetParams(executable, foreign, &one.node) != CUDA_SUCCESS, "a change of a foreign node");
    wrong = one.node;
    wrong.gridDimX = 0;
    check(cuGraphExecKernelNodeSetParams(executable, node, &wrong) != CUDA_SUCCESS, "a change to no blocks");
    check_result(cuGraphNodeSetEnabled(executable, foreign, 0), CUDA_ERROR_INVALID_VALUE, "a foreign node disabled");
    DRIVER_OK(cuGraphDestroy(other));
    DRIVER_OK(cuMemsetD32Async(work.device, 0, GraphWork::kWords, work.stream));
    DRIVER_OK(cuGraphLaunch(executable, work.stream));
    check(work.device_holds(1), "the existing graph still works");
    DRIVER_OK(cuGraphExecDestroy(executable));
    DRIVER_OK(cuGraphDestroy(graph));
}

void CUDA_CB count_call(void* data) {
    static_cast<std::atomic<int>*>(data)->fetch_add(1);
}

void other_nodes(const GraphWork& work, const Device& device) {
    std::atomic<int> calls{0};
    CUgraph graph = nullptr;
    CUgraphNode child_node = nullptr, host_node = nullptr, record = nullptr, nothing = nullptr;
    CUevent event = nullptr;
    DRIVER_OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    const Chain child = build_chain(work, device, 2, 20, 200);
    DRIVER_OK(cuGraphCreate(&graph, 0));
    DRIVER_OK(cuGraphAddChildGraphNode(&child_node, graph, nullptr, 0, child.graph));
    DRIVER_OK(cuGraphDestroy(child.graph));
    CUDA_HOST_NODE_PARAMS host{};
    host.fn = count_call;
    host.userData = &calls;
    DRIVER_OK(cuGraphAddHostNode(&host_node, graph, &child_node, 1, &host));
    DRIVER_OK(cuGraphAddEventRecordNode(&record, graph, &host_node, 1, event));
    DRIVER_OK(cuGraphAddEmptyNode(&nothing, graph, &record, 1));
    const CUgraphExec executable = instantiate(graph);
    check(run_gives(work, executable, 222) && run_gives(work, executable, 222), "a graph within a graph");
    check(calls.load() == 2, "its host function ran each time (%d)", calls.load());
    check_result(cuEventQuery(event), CUDA_SUCCESS, "the event that it records");
    DRIVER_OK(cuGraphExecDestroy(executable));
    DRIVER_OK(cuGraphDestroy(graph));
    DRIVER_OK(cuEventDestroy(event));
}

// More operations than most nodes have; a query returns all of them.
void node_of_many_operations(const GraphWork& work, const Device& device) {
    if (device.attribute(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS) == 0) {
        note("this device has no stream memory operations");
        return;
    }
    constexpr unsigned kOperations = 200;
    CUstreamBatchMemOpParams operations[kOperations] = {};
    for (unsigned i = 0; i < kOperations; ++i) {
        operations[i].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
        operations[i].writeValue.address = work.device + i * sizeof(unsigned);
        operations[i].writeValue.value = 1000 + i;
    }
    CUgraph graph = nullptr;
    CUgraphNode node = nullptr;
    DRIVER_OK(cuGraphCreate(&graph, 0));
    CUDA_BATCH_MEM_OP_NODE_PARAMS given{device.context(), kOperations, operations, 0};
    DRIVER_OK(cuGraphAddBatchMemOpNode(&node, graph, nullptr, 0, &given));
    CUDA_BATCH_MEM_OP_NODE_PARAMS seen{};
    DRIVER_OK(cuGraphBatchMemOpNodeGetParams(node, &seen));
    check(seen.count == kOperations, "%u operations of %u", seen.count, kOperations);
    for (unsigned i = 0; i < seen.count; ++i) {
        const auto& write = seen.paramArray[i].writeValue;
        check(write.operation == CU_STREAM_MEM_OP_WRITE_VALUE_32 && write.value == 1000 + i &&
                  write.address == work.device + i * sizeof(unsigned),
              "operation %u", i);
    }
    DRIVER_OK(cuGraphDestroy(graph));
}

void many_launches(const GraphWork& work, int launches) {
    const AddParameters one(work, 1);
    CUgraph graph = nullptr;
    CUgraphNode node = nullptr;
    DRIVER_OK(cuGraphCreate(&graph, 0));
    for (int i = 0; i < 5; i++) {
        CUgraphNode next = nullptr;
        DRIVER_OK(
            cuGraphAddKernelNode(&next, graph, node != nullptr ? &node : nullptr, node != nullptr ? 1 : 0, &one.node));
        node = next;
    }
    const CUgraphExec executable = instantiate(graph);
    DRIVER_OK(cuMemsetD32Async(work.device, 0, GraphWork::kWords, work.stream));
    for (int i = 0; i < launches; i++) {
        DRIVER_OK(cuGraphLaunch(executable, work.stream));
        // Between two launches, in stream order.
        DRIVER_OK(launch(work.add, GraphWork::kBlocks, GraphWork::kThreads, work.stream, work.device,
                         static_cast<unsigned>(GraphWork::kWords), 10u));
    }
    check(work.device_holds(static_cast<unsigned>(launches) * 15), "%d launches of 5 kernels, others between them",
          launches);
    DRIVER_OK(cuGraphExecDestroy(executable));
    DRIVER_OK(cuGraphDestroy(graph));
}

}  // namespace

int run(int argc, char** argv) {
    Program program("graphs", argc, argv);
    const Device device;
    const GraphWork work;
    program.section("explicit_graph", [&] { explicit_graph(work, device); });
    program.section("updates", [&] { updates(work, device); });
    program.section("updates_behind_waiting_launches", [&] { updates_behind_waiting_launches(work); });
    program.section("changes_in_turn", [&] { changes_in_turn(work); });
    program.section("refused_nodes", [&] { refused_nodes(work, device); });
    program.section("other_nodes", [&] { other_nodes(work, device); });
    program.section("node_of_many_operations", [&] { node_of_many_operations(work, device); });
    program.section("many_launches", [&] { many_launches(work, static_cast<int>(program.number("launches", 50))); });
    program.section("capture_and_replay", [&] { capture_and_replay(work); });
    program.section("capture_behind_work", [&] { capture_behind_work(work); });
    program.section("capture_two_streams", [&] { capture_two_streams(work); });
    program.section("capture_destroyed", [&] { capture_destroyed(work); });
    program.section("capture_information", [&] { capture_information(work); });
    program.section("capture_rules", [&] { capture_rules(work, device); });
    program.section("capture_mistakes", [&] { capture_mistakes(work, device); });
    program.section("memory_and_host", [&] { memory_and_host(work); });
    program.section("conditional", [&] { conditional(work, device); });
    return program.finish();
}

}  // namespace gpupool::programs

int main(int argc, char** argv) {
    return gpupool::programs::run(argc, argv);
}
