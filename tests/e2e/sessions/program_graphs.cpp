// Modes about graphs: those built and changed without waiting for the server must give the same results as on a local
// GPU.
//
//   graphs           builds, changes and launches graphs, and prints "word NUMBER", their result
//   graph_changes    changes an executable far more often than a server queues, behind launches that wait; prints "word
//                    NUMBER" as well
//   graph_gate       the same without launches between the changes; then a thread that changes another executable
//                    releases the launches
//   graph_event      an event that a change named is destroyed before the change is made
//   graph_unrelated  a node of another graph is destroyed while a launch and a change wait; then they are released
//   graph_of_ended   a call that names an event of a destroyed context is refused

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "tests/e2e/sessions/driver.h"

namespace gpupool::session_program {
namespace {

// The parameters of a node that adds `value` to the word at `data`.
struct AddNode {
    AddNode(CUfunction function, CUdeviceptr at) : data(at) {
        parameters.func = function;
        parameters.gridDimX = parameters.gridDimY = parameters.gridDimZ = 1;
        parameters.blockDimX = parameters.blockDimY = parameters.blockDimZ = 1;
        parameters.kernelParams = arguments;
    }
    AddNode(const AddNode&) = delete;
    AddNode& operator=(const AddNode&) = delete;

    CUdeviceptr data;
    unsigned count = 1, value = 1;
    void* arguments[3] = {&data, &count, &value};
    CUDA_KERNEL_NODE_PARAMS parameters{};
};

CUstream make_stream() {
    CUstream stream = nullptr;
    must(driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    return stream;
}

// Allocates 64 zero words, and launches the kernel once, so that the client has its attributes.
CUdeviceptr make_words(CUfunction function, CUstream stream) {
    CUdeviceptr data = 0;
    must(driver.cuMemAlloc(&data, 256), "cuMemAlloc");
    add(function, data, 1, 1, stream);
    must(driver.cuMemsetD32Async(data, 0, 64, stream), "cuMemsetD32Async");
    must(driver.cuStreamSynchronize(stream), "cuStreamSynchronize");
    return data;
}

unsigned word_at(CUdeviceptr data, CUstream stream) {
    unsigned word = 0;
    must(driver.cuStreamSynchronize(stream), "cuStreamSynchronize");
    must(driver.cuMemcpyDtoH(&word, data, sizeof word), "cuMemcpyDtoH");
    return word;
}

// A chain of such nodes.
struct Chain {
    Chain(const AddNode& node, std::size_t length) : nodes(length) {
        must(driver.cuGraphCreate(&graph, 0), "cuGraphCreate");
        for (std::size_t i = 0; i < length; ++i) {
            must(driver.cuGraphAddKernelNode(&nodes[i], graph, i == 0 ? nullptr : &nodes[i - 1], i == 0 ? 0 : 1,
                                             &node.parameters),
                 "cuGraphAddKernelNode");
        }
    }
    CUgraphExec instantiate() const {
        CUgraphExec executable = nullptr;
        must(driver.cuGraphInstantiateWithFlags(&executable, graph, 0), "cuGraphInstantiateWithFlags");
        return executable;
    }
    CUgraph graph = nullptr;
    std::vector<CUgraphNode> nodes;
};

int run_graphs() {
    constexpr int kGraphs = 20, kAdded = 10;
    const CUcontext context = begin();
    const CUfunction function = kernel("add_value");
    const CUstream stream = make_stream();
    const CUdeviceptr data = make_words(function, stream);
    AddNode node(function, data);
    const CUDA_MEMSET_NODE_PARAMS set{data + 128, 0, 0, 4, 8, 1};
    CUDA_MEMCPY3D copy{};
    copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.srcDevice = data + 128;
    copy.dstDevice = data + 192;
    copy.WidthInBytes = 32;
    copy.Height = copy.Depth = 1;
    for (int i = 0; i < kGraphs; ++i) {
        CUgraph graph = nullptr;
        CUgraphNode nodes[kAdded + 3];
        CUgraphExec executable = nullptr;
        must(driver.cuGraphCreate(&graph, 0), "cuGraphCreate");
        must(driver.cuGraphAddMemsetNode(&nodes[0], graph, nullptr, 0, &set, context), "cuGraphAddMemsetNode");
        must(driver.cuGraphAddMemcpyNode(&nodes[1], graph, nodes, 1, &copy, context), "cuGraphAddMemcpyNode");
        for (int k = 0; k < kAdded; ++k) {
            node.value = 1;
            must(driver.cuGraphAddKernelNode(&nodes[2 + k], graph, &nodes[1 + k], 1, &node.parameters),
                 "cuGraphAddKernelNode");
        }
        must(driver.cuGraphAddEmptyNode(&nodes[kAdded + 2], graph, &nodes[kAdded], 2), "cuGraphAddEmptyNode");
        node.value = 2;
        must(driver.cuGraphKernelNodeSetParams(nodes[2], &node.parameters), "cuGraphKernelNodeSetParams");
        must(driver.cuGraphInstantiateWithFlags(&executable, graph, 0), "cuGraphInstantiateWithFlags");
        must(driver.cuGraphLaunch(executable, stream), "cuGraphLaunch");  // 11
        node.value = 100;
        must(driver.cuGraphExecKernelNodeSetParams(executable, nodes[3], &node.parameters),
             "cuGraphExecKernelNodeSetParams");
        must(driver.cuGraphNodeSetEnabled(executable, nodes[4], 0), "cuGraphNodeSetEnabled");
        must(driver.cuGraphLaunch(executable, stream), "cuGraphLaunch");  // 109
        must(driver.cuGraphExecDestroy(executable), "cuGraphExecDestroy");
        must(driver.cuGraphDestroy(graph), "cuGraphDestroy");
    }
    say("word", word_at(data, stream));
    return 0;
}

int run_changes() {
    constexpr std::size_t kNodes = 64;
    constexpr int kLaunches = 300;  // 19,200 changes
    begin();
    const CUfunction function = kernel("add_value");
    const CUstream stream = make_stream();
    const CUdeviceptr data = make_words(function, stream);
    AddNode node(function, data);
    const Chain chain(node, kNodes);
    const CUgraphExec executable = chain.instantiate();
    block_until_release(stream);
    ReleaseWhenBlocked release_when_throttled;
    for (int i = 0; i < kLaunches; ++i) {
        must(driver.cuGraphLaunch(executable, stream), "cuGraphLaunch");
        node.value = static_cast<unsigned>(i) + 2;
        for (const CUgraphNode each : chain.nodes) {
            must(driver.cuGraphExecKernelNodeSetParams(executable, each, &node.parameters),
                 "cuGraphExecKernelNodeSetParams");
        }
    }
    say("throttled", release_when_throttled.end());
    say("word", word_at(data, stream));
    return 0;
}

int run_gate() {
    constexpr int kChanges = 30;
    const CUcontext context = begin();
    const CUfunction function = kernel("add_value");
    const CUstream stream = make_stream(), other = make_stream();
    const CUdeviceptr data = make_words(function, stream);
    AddNode node(function, data), unused(function, data);
    const Chain chain(node, 490), second(node, 1);
    const CUgraphExec executable = chain.instantiate(), second_executable = second.instantiate();
    must(driver.cuStreamWaitValue32(stream, data + 128, 1, CU_STREAM_WAIT_VALUE_EQ), "cuStreamWaitValue32");
    must(driver.cuGraphLaunch(executable, stream), "cuGraphLaunch");
    // 980 places, which a local driver accepts without blocking
    must(driver.cuGraphLaunch(executable, stream), "cuGraphLaunch");
    for (int i = 0; i < kChanges; ++i) {
        node.value = static_cast<unsigned>(i) + 2;
        for (const CUgraphNode each : chain.nodes) {
            must(driver.cuGraphExecKernelNodeSetParams(executable, each, &node.parameters),
                 "cuGraphExecKernelNodeSetParams");
        }
    }
    std::thread([&] {
        use(context);
        must(driver.cuGraphKernelNodeSetParams(chain.nodes[0], &unused.parameters), "cuGraphKernelNodeSetParams");
        must(driver.cuGraphExecKernelNodeSetParams(second_executable, second.nodes[0], &unused.parameters),
             "cuGraphExecKernelNodeSetParams of another");
        must(driver.cuStreamWriteValue32(other, data + 128, 1, 0), "cuStreamWriteValue32");
    }).join();
    must(driver.cuGraphLaunch(executable, stream), "cuGraphLaunch");
    say("word", word_at(data, stream));
    return 0;
}

int run_event() {
    begin();
    const CUfunction function = kernel("add_value");
    const CUstream stream = make_stream();
    const CUdeviceptr data = make_words(function, stream);
    const AddNode node(function, data);
    Chain chain(node, 300);
    CUevent first = nullptr, second = nullptr;
    CUgraphNode record = nullptr;
    must(driver.cuEventCreate(&first, 0), "cuEventCreate");
    must(driver.cuEventCreate(&second, 0), "cuEventCreate");
    must(driver.cuGraphAddEventRecordNode(&record, chain.graph, &chain.nodes.back(), 1, first),
         "cuGraphAddEventRecordNode");
    const CUgraphExec executable = chain.instantiate();
    block_until_release(stream);
    ReleaseWhenBlocked release_when_throttled;
    for (int i = 0; i < 8; ++i) {
        must(driver.cuGraphLaunch(executable, stream), "cuGraphLaunch");
    }
    must(driver.cuGraphExecEventRecordNodeSetEvent(executable, record, second), "cuGraphExecEventRecordNodeSetEvent");
    must(driver.cuGraphExecEventRecordNodeSetEvent(executable, record, first), "cuGraphExecEventRecordNodeSetEvent");
    must(driver.cuEventDestroy(second), "cuEventDestroy");
    must(driver.cuGraphLaunch(executable, stream), "cuGraphLaunch");
    (void)release_when_throttled.end();
    say("word", word_at(data, stream));
    return 0;
}

int run_unrelated() {
    begin();
    const CUfunction function = kernel("add_value");
    const CUstream stream = make_stream(), other = make_stream();
    const CUdeviceptr data = make_words(function, stream);
    AddNode node(function, data);
    const Chain chain(node, 500), unrelated(node, 2);
    const CUgraphExec executable = chain.instantiate();
    must(driver.cuStreamWaitValue32(stream, data + 128, 1, CU_STREAM_WAIT_VALUE_EQ), "cuStreamWaitValue32");
    must(driver.cuGraphLaunch(executable, stream), "cuGraphLaunch");
    must(driver.cuGraphLaunch(executable, stream), "cuGraphLaunch");  // held by the worker
    node.value = 10;
    must(driver.cuGraphExecKernelNodeSetParams(executable, chain.nodes[0], &node.parameters),
         "cuGraphExecKernelNodeSetParams");
    must(driver.cuGraphDestroyNode(unrelated.nodes[1]), "cuGraphDestroyNode");
    must(driver.cuStreamWriteValue32(other, data + 128, 1, 0), "cuStreamWriteValue32");
    must(driver.cuGraphLaunch(executable, stream), "cuGraphLaunch");
    say("word", word_at(data, stream));
    return 0;
}

int run_of_ended() {
    const CUcontext context = begin();
    CUcontext ended = nullptr;
    CUevent event = nullptr;
    CUgraph graph = nullptr;
    CUgraphNode node = nullptr;
    must(driver.cuCtxCreate(&ended, nullptr, 0, 0), "cuCtxCreate");
    must(driver.cuEventCreate(&event, 0), "cuEventCreate");
    must(driver.cuCtxDestroy(ended), "cuCtxDestroy");
    use(context);
    must(driver.cuGraphCreate(&graph, 0), "cuGraphCreate");
    say("result", driver.cuGraphAddEventRecordNode(&node, graph, nullptr, 0, event));
    must(driver.cuCtxSynchronize(), "cuCtxSynchronize");
    return 0;
}

}  // namespace

int run_graph_modes(const std::string& mode) {
    return mode == "graphs"            ? run_graphs()
           : mode == "graph_changes"   ? run_changes()
           : mode == "graph_gate"      ? run_gate()
           : mode == "graph_event"     ? run_event()
           : mode == "graph_unrelated" ? run_unrelated()
           : mode == "graph_of_ended"  ? run_of_ended()
                                       : -1;
}

}  // namespace gpupool::session_program
