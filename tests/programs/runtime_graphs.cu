// Graphs through the runtime, which names kernels by their host functions: captured, inspected, changed and launched.
#include <vector>

#include "tests/programs/runtime.h"

using namespace gpupool::programs;

__global__ void add(unsigned* data, unsigned count, unsigned value) {
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) {
        data[i] += value;
    }
}

int main(int argc, char** argv) {
    limit_seconds(120);
    unsigned count = static_cast<unsigned>(number_argument(argc, argv, 1, 5'000));
    const size_t bytes = count * sizeof(unsigned);
    unsigned *device = nullptr, *host = nullptr;
    cudaStream_t stream = nullptr;
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    CUDA_OK(cudaMalloc(&device, bytes));
    CUDA_OK(cudaMallocHost(&host, bytes));
    CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));

    CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    CUDA_OK(cudaMemsetAsync(device, 0, bytes, stream));
    add<<<(count + 127) / 128, 128, 0, stream>>>(device, count, 3);
    CUDA_OK(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream));
    CUDA_OK(cudaStreamEndCapture(stream, &graph));
    size_t nodes = 0;
    CUDA_OK(cudaGraphGetNodes(graph, nullptr, &nodes));
    check(nodes == 3, "a captured graph of %zu nodes", nodes);
    std::vector<cudaGraphNode_t> all(nodes);
    CUDA_OK(cudaGraphGetNodes(graph, all.data(), &nodes));
    cudaGraphNode_t kernel = nullptr;
    for (cudaGraphNode_t node : all) {
        cudaGraphNodeType type{};
        CUDA_OK(cudaGraphNodeGetType(node, &type));
        kernel = type == cudaGraphNodeTypeKernel ? node : kernel;
    }
    cudaKernelNodeParams parameters{};
    CUDA_OK(cudaGraphKernelNodeGetParams(kernel, &parameters));
    check(parameters.func == reinterpret_cast<void*>(add), "the kernel's host function");
    check(parameters.blockDim.x == 128 && parameters.kernelParams != nullptr &&
              *static_cast<unsigned*>(parameters.kernelParams[2]) == 3,
          "its shape and arguments");

    const auto result = [&] {
        CUDA_OK(cudaGraphLaunch(executable, stream));
        CUDA_OK(cudaStreamSynchronize(stream));
        return host[0] == host[count - 1] ? host[0] : ~0u;
    };
    CUDA_OK(cudaGraphInstantiate(&executable, graph, 0));
    unsigned seen = result();
    check(seen == 3, "launched: %u", seen);
    unsigned value = 11;
    void* arguments[] = {&device, &count, &value};
    parameters.kernelParams = arguments;
    parameters.extra = nullptr;
    CUDA_OK(cudaGraphExecKernelNodeSetParams(executable, kernel, &parameters));
    seen = result();
    check(seen == 11, "with other arguments: %u", seen);
    CUDA_OK(cudaGraphKernelNodeSetParams(kernel, &parameters));
    cudaGraphNode_t again = nullptr;
    CUDA_OK(cudaGraphAddKernelNode(&again, graph, &kernel, 1, &parameters));
    CUDA_OK(cudaGraphExecDestroy(executable));
    CUDA_OK(cudaGraphInstantiate(&executable, graph, 0));
    CUDA_OK(cudaGraphLaunch(executable, stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    CUDA_OK(cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost));
    check(host[7] == 22, "and a second kernel behind it: %u", host[7]);

    CUDA_OK(cudaGraphExecDestroy(executable));
    CUDA_OK(cudaGraphDestroy(graph));
    CUDA_OK(cudaStreamDestroy(stream));
    CUDA_OK(cudaFreeHost(host));
    CUDA_OK(cudaFree(device));
    return finish("runtime_graphs");
}
