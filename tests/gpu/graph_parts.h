// Shared by graph_parts.cpp, graph_parts_conditions.cpp (conditional nodes and launches by kernels) and
// graph_parts_objects.cpp (user objects).
//
// Threads: a context is current. Errors: as in driver.h.
#pragma once

#include <atomic>
#include <cstring>

#include "tests/gpu/graphs.h"

namespace gpupool::programs {

inline CUgraphNodeParams parameters_of(CUgraphNodeType type) {
    CUgraphNodeParams parameters;
    std::memset(static_cast<void*>(&parameters), 0, sizeof parameters);
    parameters.type = type;
    return parameters;
}

inline void destroy(CUgraphExec executable, CUgraph graph) {
    DRIVER_OK(cuGraphExecDestroy(executable));
    DRIVER_OK(cuGraphDestroy(graph));
}

inline unsigned word_at(CUdeviceptr address) {
    unsigned word = 0;
    DRIVER_OK(cuMemcpyDtoH(&word, address, sizeof word));
    return word;
}

// Counts its calls in a std::atomic<int>.
inline void CUDA_CB count(void* counter) {
    static_cast<std::atomic<int>*>(counter)->fetch_add(1);
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

// A graph that adds 1 to the words.
inline CUgraph kernel_graph(const GraphWork& work) {
    CUgraph graph = nullptr;
    DRIVER_OK(cuGraphCreate(&graph, 0));
    add_kernel(graph, nullptr, work.add, GraphWork::kBlocks, GraphWork::kThreads, work.device,
               static_cast<unsigned>(GraphWork::kWords), 1u);
    return graph;
}

void conditions(const GraphWork& work, const Device& device);
void nested_conditions(const GraphWork& work, const Device& device);
void refused_conditions(const Device& device);
void conditions_and_host(const GraphWork& work, const Device& device);
void loop(const GraphWork& work, const Device& device);
void launched_by_kernels(const GraphWork& work);

void counted_objects();
void objects_of_graphs(const GraphWork& work);
void objects_of_captures(const GraphWork& work);
void objects_of_executables(const GraphWork& work);

}  // namespace gpupool::programs
