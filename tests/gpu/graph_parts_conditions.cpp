// Conditional nodes, and graphs that kernels launch. Kernels that set a condition or launch a graph call NVIDIA's
// device runtime.
#include <fstream>
#include <utility>
#include <vector>

#include "tests/gpu/graph_parts.h"

namespace gpupool::programs {
namespace {

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

// Each body adds another power of two; returns what was added.
unsigned bodies_that_run(const GraphWork& work, const Conditional& made) {
    for (size_t i = 0; i < made.bodies.size(); ++i) {
        add_kernel(made.bodies[i], nullptr, work.add, GraphWork::kBlocks, GraphWork::kThreads, work.device,
                   static_cast<unsigned>(GraphWork::kWords), 1u << i);
    }
    DRIVER_OK(cuMemsetD32(work.device, 0, GraphWork::kWords));
    DRIVER_OK(cuCtxSynchronize());
    const CUgraphExec executable = instantiate(made.graph);
    CUgraphExec second = nullptr;
    check_result(cuGraphInstantiate(&second, made.graph, 0), CUDA_ERROR_NOT_SUPPORTED, "a second executable");
    DRIVER_OK(cuGraphLaunch(executable, work.stream));
    DRIVER_OK(cuStreamSynchronize(work.stream));
    const unsigned added = word_at(work.device);
    destroy(executable, made.graph);
    return added;
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

}  // namespace

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
        const CUgraphExec executable = instantiate(outer.graph);
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
        const CUgraphExec executable = instantiate(made.graph);
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
    const CUgraphExec executable = instantiate(made.graph);
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
        const CUgraphExec launches = instantiate(launching, CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH);
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

}  // namespace gpupool::programs
