#include <algorithm>
#include <vector>

#include "tests/gpu/graphs.h"
#include "tests/gpu/images.h"

namespace gpupool::programs {

GraphWork::GraphWork() : module(kernels_ptx().data), add(module.function("add_value")) {
    DRIVER_OK(cuMemAlloc(&device, kBytes));
    DRIVER_OK(cuMemAllocHost(reinterpret_cast<void**>(&host_in), kBytes));
    DRIVER_OK(cuMemAllocHost(reinterpret_cast<void**>(&host_out), kBytes));
    DRIVER_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    DRIVER_OK(launch(add, 1, 1, stream, device, 0u, 0u));  // loads the kernel, which a capture must not do
    DRIVER_OK(cuStreamSynchronize(stream));
}

GraphWork::~GraphWork() {
    cuStreamDestroy(stream);
    cuMemFreeHost(host_in);
    cuMemFreeHost(host_out);
    cuMemFree(device);
}

void GraphWork::fill_host(unsigned value) const {
    std::fill_n(host_in, kWords, value);
    std::fill_n(host_out, kWords, 0u);
}

bool GraphWork::host_holds(unsigned value) const {
    return std::all_of(host_out, host_out + kWords, [value](unsigned seen) { return seen == value; });
}

bool GraphWork::device_holds(unsigned value) const {
    DRIVER_OK(cuCtxSynchronize());
    std::vector<unsigned> back(kWords);
    DRIVER_OK(cuMemcpyDtoH(back.data(), device, kBytes));
    return std::all_of(back.begin(), back.end(), [value](unsigned seen) { return seen == value; });
}

CUDA_MEMCPY3D copy_out(const GraphWork& work) {
    CUDA_MEMCPY3D copy{};
    copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.srcDevice = work.device;
    copy.dstMemoryType = CU_MEMORYTYPE_HOST;
    copy.dstHost = work.host_out;
    copy.WidthInBytes = GraphWork::kBytes;
    copy.Height = copy.Depth = 1;
    return copy;
}

size_t node_count(CUgraph graph) {
    size_t count = 0;
    DRIVER_OK(cuGraphGetNodes(graph, nullptr, &count));
    return count;
}

CUgraphExec instantiate(CUgraph graph, unsigned long long flags) {
    CUgraphExec executable = nullptr;
    DRIVER_OK(cuGraphInstantiate(&executable, graph, flags));
    return executable;
}

}  // namespace gpupool::programs
