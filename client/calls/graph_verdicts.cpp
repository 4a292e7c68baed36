#include "client/calls/graph_verdicts.h"

#include "client/calls/launch_config.h"
#include "client/core/dispatch/remote.h"
#include "client/core/images/code.h"

namespace gpupool::client {
namespace {

bool is_usable_kernel(const CUDA_KERNEL_NODE_PARAMS_v3& p) {
    ContextState* context = nullptr;
    LaunchTarget target;
    if (usable_context(context) != CUDA_SUCCESS || (p.ctx != nullptr && p.ctx != context->handle) ||
        find_launch_target(function_in(p), *context, target) != CUDA_SUCCESS) {
        return false;
    }
    const LaunchShape shape{target.function, p.gridDimX,  p.gridDimY,       p.gridDimZ, p.blockDimX,
                            p.blockDimY,     p.blockDimZ, p.sharedMemBytes, 0,          0};
    const Device& device = this_session().devices.devices[static_cast<std::size_t>(context->device)];
    // Not for clusters, which have to divide the grid.
    return target.attributes->get(CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET) == 0 &&
           target.attributes->get(CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH) == 0 &&
           check_limits(device, *target.attributes, shape) == CUDA_SUCCESS;
}

// Does the range lie within one allocation of the program in the current context?
bool is_own_memory(CUdeviceptr address, std::uint64_t bytes, CUcontext context) {
    ContextState* current = nullptr;
    if (usable_context(current) != CUDA_SUCCESS || context != current->handle || bytes == 0) {
        return false;
    }
    const std::optional<MemoryRange> range = this_session().memory.find(address);
    return range && range->kind == MemoryKind::device && range->context == &current->owner() &&
           address - range->base <= range->bytes && bytes <= range->bytes - (address - range->base);
}

bool is_usable_memset(const CUDA_MEMSET_NODE_PARAMS_v2& p) {
    const bool elements = p.elementSize == 1 || p.elementSize == 2 || p.elementSize == 4;
    constexpr std::uint64_t kMaxElements = 1ull << 40;
    return elements && p.height == 1 && p.width != 0 && p.width < kMaxElements && p.dst % p.elementSize == 0 &&
           (p.elementSize == 4 || p.value >> (8 * p.elementSize) == 0) &&
           is_own_memory(p.dst, p.width * p.elementSize, p.ctx);
}

// Accepts one row from device memory to device memory.
bool is_usable_copy(const CUDA_MEMCPY_NODE_PARAMS& node) {
    const CUDA_MEMCPY3D& p = node.copyParams;
    const bool plain = p.srcMemoryType == CU_MEMORYTYPE_DEVICE && p.dstMemoryType == CU_MEMORYTYPE_DEVICE &&
                       p.Height == 1 && p.Depth == 1 && p.srcXInBytes == 0 && p.srcY == 0 && p.srcZ == 0 &&
                       p.srcLOD == 0 && p.dstXInBytes == 0 && p.dstY == 0 && p.dstZ == 0 && p.dstLOD == 0 &&
                       (p.srcPitch == 0 || p.srcPitch >= p.WidthInBytes) &&
                       (p.dstPitch == 0 || p.dstPitch >= p.WidthInBytes) && p.srcHeight <= 1 && p.dstHeight <= 1;
    return plain && node.flags == 0 && is_own_memory(p.srcDevice, p.WidthInBytes, node.copyCtx) &&
           is_own_memory(p.dstDevice, p.WidthInBytes, node.copyCtx);
}

bool is_usable(const CUgraphNodeParams& p) {
    switch (p.type) {
        case CU_GRAPH_NODE_TYPE_KERNEL: return is_usable_kernel(p.kernel);
        case CU_GRAPH_NODE_TYPE_MEMSET: return is_usable_memset(p.memset);
        case CU_GRAPH_NODE_TYPE_MEMCPY: return is_usable_copy(p.memcpy);
        case CU_GRAPH_NODE_TYPE_HOST: return p.host.fn != nullptr;
        case CU_GRAPH_NODE_TYPE_EMPTY: return true;
        default: return false;  // an event may be destroyed before the worker makes the change
    }
}

}  // namespace

CUfunction function_of(const CUgraphNodeParams& parameters) {
    CUfunction function = parameters.type == CU_GRAPH_NODE_TYPE_KERNEL ? function_in(parameters.kernel) : nullptr;
    return function != nullptr && launchable(function) == CUDA_SUCCESS ? function : nullptr;
}

bool surely_added(CUgraph graph, const CUgraphNode* dependencies, std::size_t count, const CUgraphEdgeData* edges,
                  const CUgraphNodeParams& parameters) {
    const Graphs& graphs = this_session().graphs;
    return edges == nullptr && graphs.has_room(graph) && graphs.has(graph, dependencies, count) &&
           is_usable(parameters);
}

bool surely_changed(CUgraphExec executable, const Graphs::Node& node, const CUgraphNodeParams& parameters) {
    if (parameters.type != node.type || (executable != nullptr && !this_session().graphs.holds(executable, node))) {
        return false;
    }
    switch (node.type) {
        case CU_GRAPH_NODE_TYPE_KERNEL:
            return function_of(parameters) == node.function && is_usable_kernel(parameters.kernel);
        case CU_GRAPH_NODE_TYPE_HOST: return is_usable(parameters);
        default: return false;  // the driver's verdict depends on the node's earlier parameters
    }
}

}  // namespace gpupool::client
