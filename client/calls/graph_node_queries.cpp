// Queries of the parameters of graphs' nodes.

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "client/calls/copy_shapes.h"
#include "client/calls/graph_nodes.h"
#include "client/calls/handlers.h"
#include "client/calls/launch_arguments.h"
#include "client/core/dispatch/remote.h"

namespace gpupool::client::entry {
namespace {

// Room in the first query: a reply is as long as the room given, and most nodes need far less than the maximum.
constexpr std::size_t kUsualPayloadBytes = 1u << 10;
constexpr std::size_t kMaxNodePayloadBytes = 64u << 10;

// Gets the parameters of a node of that type. `to`: where the caller will write them; must not be null.
CUresult get_node(CUgraphNode asked, CUgraphNodeType type, const void* to, NodeMessage& message) {
    if (to == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    std::size_t bytes = 0;
    const auto ask = [&](std::size_t room) {
        message.payload.resize(room);
        return remote<calls::gpGraphNodeGetParams>(asked, &message.node, message.payload.data(), message.payload.size(),
                                                   &bytes);
    };
    CUresult result = ask(kUsualPayloadBytes);
    if (result == CUDA_SUCCESS && bytes > kUsualPayloadBytes && bytes <= kMaxNodePayloadBytes) {
        result = ask(bytes);
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (message.node.type != static_cast<int>(type) || bytes > message.payload.size()) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    message.payload.resize(bytes);
    message.payload.shrink_to_fit();
    return CUDA_SUCCESS;
}

// Does the payload hold as many `T` as the node says?
template <class T>
bool holds(const NodeMessage& message) {
    return message.payload.size() == message.node.count * sizeof(T);
}

// `to`: any version of the kernel node's parameters.
template <class Parameters>
CUresult get_kernel(CUgraphNode asked, Parameters* to) {
    NodeMessage message;
    const CUresult result = get_node(asked, CU_GRAPH_NODE_TYPE_KERNEL, to, message);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    const GraphNode& node = message.node;
    *to = {};
    CUfunction function = node.function;  // a kernel if the client has not loaded its function
    (void)launchable(function);
    to->func = function;
    to->gridDimX = node.grid_x;
    to->gridDimY = node.grid_y;
    to->gridDimZ = node.grid_z;
    to->blockDimX = node.block_x;
    to->blockDimY = node.block_y;
    to->blockDimZ = node.block_z;
    to->sharedMemBytes = node.shared_bytes;
    if constexpr (requires { to->ctx; }) {
        to->ctx = node.context;
    }
    std::shared_ptr<const FunctionInfo> info;
    (void)function_info_with_layout(function, info);  // null if the function is no longer known
    if constexpr (requires { to->kern; }) {
        to->kern = info == nullptr ? nullptr : info->kernel;  // by which the CUDA runtime finds its function
    }
    if (info == nullptr || info->layout.empty()) {
        return CUDA_SUCCESS;
    }
    message.payload.resize(std::max(message.payload.size(), info->parameter_bytes));
    std::vector<void*> addresses;
    for (const ParameterLayout& parameter : info->layout) {
        addresses.push_back(message.payload.data() + parameter.offset_bytes);
    }
    to->kernelParams = addresses.data();
    keep_storage(asked, {std::move(message.payload), std::move(addresses), {}});
    return CUDA_SUCCESS;
}

CUresult get_event(CUgraphNode asked, CUgraphNodeType type, CUevent* event) {
    NodeMessage message;
    const CUresult result = get_node(asked, type, event, message);
    if (result == CUDA_SUCCESS) {
        *event = message.node.event;
    }
    return result;
}

}  // namespace

CUresult cuGraphKernelNodeGetParams(CUgraphNode hNode, CUDA_KERNEL_NODE_PARAMS_v1* nodeParams) {
    return get_kernel(hNode, nodeParams);
}
CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode hNode, CUDA_KERNEL_NODE_PARAMS_v2* nodeParams) {
    return get_kernel(hNode, nodeParams);
}

CUresult cuGraphMemcpyNodeGetParams(CUgraphNode hNode, CUDA_MEMCPY3D* nodeParams) {
    NodeMessage message;
    const CUresult result = get_node(hNode, CU_GRAPH_NODE_TYPE_MEMCPY, nodeParams, message);
    if (result == CUDA_SUCCESS) {
        *nodeParams = message.node.copy;
        restore_host_memory(*nodeParams);
    }
    return result;
}

CUresult cuGraphMemsetNodeGetParams(CUgraphNode hNode, CUDA_MEMSET_NODE_PARAMS* nodeParams) {
    NodeMessage message;
    const CUresult result = get_node(hNode, CU_GRAPH_NODE_TYPE_MEMSET, nodeParams, message);
    if (result == CUDA_SUCCESS) {
        const GraphNode& node = message.node;
        *nodeParams = {node.address, node.pitch_bytes, node.value, node.element_bytes, node.width, node.height};
    }
    return result;
}

CUresult cuGraphHostNodeGetParams(CUgraphNode hNode, CUDA_HOST_NODE_PARAMS* nodeParams) {
    NodeMessage message;
    const CUresult result = get_node(hNode, CU_GRAPH_NODE_TYPE_HOST, nodeParams, message);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    const auto known = this_session().graph_hosts.function(message.node.host_function);
    if (!known) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *nodeParams = {known->function, known->argument};
    return CUDA_SUCCESS;
}

CUresult cuGraphEventRecordNodeGetEvent(CUgraphNode hNode, CUevent* event_out) {
    return get_event(hNode, CU_GRAPH_NODE_TYPE_EVENT_RECORD, event_out);
}
CUresult cuGraphEventWaitNodeGetEvent(CUgraphNode hNode, CUevent* event_out) {
    return get_event(hNode, CU_GRAPH_NODE_TYPE_WAIT_EVENT, event_out);
}

CUresult cuGraphMemAllocNodeGetParams(CUgraphNode hNode, CUDA_MEM_ALLOC_NODE_PARAMS* params_out) {
    NodeMessage message;
    const CUresult result = get_node(hNode, CU_GRAPH_NODE_TYPE_MEM_ALLOC, params_out, message);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (!holds<CUmemAccessDesc>(message)) {
        return CUDA_ERROR_UNKNOWN;
    }
    *params_out = {};
    params_out->poolProps = message.node.pool;
    params_out->bytesize = message.node.bytes;
    params_out->dptr = message.node.address;
    params_out->accessDescCount = message.node.count;
    if (message.node.count != 0) {
        params_out->accessDescs = reinterpret_cast<const CUmemAccessDesc*>(message.payload.data());
        keep_storage(hNode, {std::move(message.payload), {}, {}});
    }
    return CUDA_SUCCESS;
}

CUresult cuGraphMemFreeNodeGetParams(CUgraphNode hNode, CUdeviceptr* dptr_out) {
    NodeMessage message;
    const CUresult result = get_node(hNode, CU_GRAPH_NODE_TYPE_MEM_FREE, dptr_out, message);
    if (result == CUDA_SUCCESS) {
        *dptr_out = message.node.address;
    }
    return result;
}

CUresult cuGraphBatchMemOpNodeGetParams(CUgraphNode hNode, CUDA_BATCH_MEM_OP_NODE_PARAMS* nodeParams_out) {
    NodeMessage message;
    const CUresult result = get_node(hNode, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, nodeParams_out, message);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (!holds<CUstreamBatchMemOpParams>(message)) {
        return CUDA_ERROR_UNKNOWN;
    }
    const GraphNode node = message.node;
    *nodeParams_out = {node.context, node.count, reinterpret_cast<CUstreamBatchMemOpParams*>(message.payload.data()),
                       node.flags};
    keep_storage(hNode, {std::move(message.payload), {}, {}});
    return CUDA_SUCCESS;
}

}  // namespace gpupool::client::entry
