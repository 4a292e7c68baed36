// Nodes: adds each kind, and queries and changes their parameters.
#include "server/softgpu/api/graph_handles.h"
#include "server/softgpu/graph/capture.h"
#include "server/softgpu/graph/payload.h"

using namespace gpupool::softgpu;

namespace {

// Calls `make` for the payload once everything else is checked.
template <class Make>
CUresult add_node(CUgraphNode* result, CUgraph handle, const CUgraphNode* dependencies, size_t count,
                  const CUgraphEdgeData* edges, Make make) {
    SOFTGPU_GRAPHS();
    SOFTGPU_GRAPH(handle, graph);
    SOFTGPU_NOT_NULL(result);
    std::vector<Node*> before;
    if (!find_dependencies(*graph, dependencies, count, before) || !good_edges(edges, count)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    PayloadPtr payload;
    if (const CUresult error = make(*graph, payload); error != CUDA_SUCCESS) {
        return error;
    }
    Node* node = graph->add(std::move(payload), before);
    graphs().nodes.add(graph->nodes.back());
    *result = handle_of(node);
    return CUDA_SUCCESS;
}

// Changes a node of a graph, or its copy in an executable.
template <class Make>
CUresult change_node(CUgraphExec executable_handle, bool of_executable, CUgraphNode handle, Make make) {
    return with_local_room([&](std::shared_ptr<const Plan>& plan) -> CUresult {
        SOFTGPU_GRAPHS();
        SOFTGPU_NODE(handle, node);
        PayloadPtr payload;
        if (const CUresult error = make(*node->graph, payload); error != CUDA_SUCCESS) {
            return error;
        }
        if (type_of(*payload) != type_of(*node->payload)) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        if (!of_executable) {
            node->payload = std::move(payload);
            return CUDA_SUCCESS;
        }
        SOFTGPU_EXECUTABLE(executable_handle, executable);
        Node* mine = executable->find(*node);
        if (mine == nullptr || !may_change(*mine->payload, *payload, Purpose::set_params)) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        mine->payload = std::move(payload);
        executable->renew_plan();
        plan = executable->plan;
        return CUDA_SUCCESS;
    });
}

template <class P, class Give>
CUresult ask_node(CUgraphNode handle, const void* result, Give give) {
    SOFTGPU_GRAPHS();
    SOFTGPU_NODE(handle, node);
    SOFTGPU_NOT_NULL(result);
    const P* payload = std::get_if<P>(node->payload.get());
    if (payload == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    give(*payload);
    return CUDA_SUCCESS;
}

auto kernel_maker(const CUDA_KERNEL_NODE_PARAMS* params) {
    return [=](const Graph&, PayloadPtr& payload) {
        SOFTGPU_NOT_NULL(params);
        return make_kernel(*params, payload);
    };
}

auto old_kernel_maker(const CUDA_KERNEL_NODE_PARAMS_v1* params) {
    return [=](const Graph&, PayloadPtr& payload) {
        SOFTGPU_NOT_NULL(params);
        return make_kernel(
            {params->func, params->gridDimX, params->gridDimY, params->gridDimZ, params->blockDimX, params->blockDimY,
             params->blockDimZ, params->sharedMemBytes, params->kernelParams, params->extra, nullptr, nullptr},
            payload);
    };
}

auto copy_maker(const CUDA_MEMCPY3D* params, CUcontext context) {
    return [=](const Graph&, PayloadPtr& payload) { return make_copy(params, context, payload); };
}

auto fill_maker(const CUDA_MEMSET_NODE_PARAMS* params, CUcontext context) {
    return [=](const Graph&, PayloadPtr& payload) { return make_fill(params, context, payload); };
}

auto host_maker(const CUDA_HOST_NODE_PARAMS* params) {
    return [=](const Graph&, PayloadPtr& payload) { return make_host(params, payload); };
}

auto event_maker(CUevent event, bool record) {
    return [=](const Graph&, PayloadPtr& payload) { return make_event(event, record, payload); };
}

auto operations_maker(const CUDA_BATCH_MEM_OP_NODE_PARAMS* params) {
    return [=](const Graph&, PayloadPtr& payload) { return make_operations(params, payload); };
}

auto any_maker(CUgraphNodeParams* params) {
    return [=](const Graph& graph, PayloadPtr& payload)
               GP_REQUIRES(graph_mutex()) { return make_any(params, graph, payload); };
}

// Changing only the parameters keeps the node's context.
template <class P>
CUcontext context_of(CUgraphNode handle) {
    const Lock lock(graph_mutex());
    const auto node = graphs().nodes.find(handle);
    const P* payload = node == nullptr ? nullptr : std::get_if<P>(node->payload.get());
    return payload == nullptr ? nullptr : reinterpret_cast<CUcontext>(payload->context);
}

// The library's kernel of this function, by which the runtime finds its own function; null if there is none.
CUkernel kernel_of(const KernelCall& call) {
    const auto library = state().libraries.find(call.module->library);
    if (library == nullptr) {
        return nullptr;
    }
    for (const CompiledFunction& function : library->code->functions) {
        if (function.entry && function.name == call.function->code->name) {
            return reinterpret_cast<CUkernel>(library->kernel(function).get());
        }
    }
    return nullptr;
}

CUresult get_kernel(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS* params) {
    return ask_node<KernelPayload>(node, params, [&](const KernelPayload& kernel) {
        const KernelCall& call = kernel.call;
        *params = {reinterpret_cast<CUfunction>(call.function.get()),
                   call.grid[0],
                   call.grid[1],
                   call.grid[2],
                   call.block[0],
                   call.block[1],
                   call.block[2],
                   call.shared_bytes,
                   kernel.packed || kernel.addresses.empty() ? nullptr : const_cast<void**>(kernel.addresses.data()),
                   kernel.packed ? const_cast<void**>(kernel.extra.data()) : nullptr,
                   kernel_of(call),
                   reinterpret_cast<CUcontext>(call.module->context.get())};
    });
}

constexpr bool kForExecutable = true;

}  // namespace

extern "C" {

CUresult CUDAAPI cuGraphAddKernelNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                                      const CUDA_KERNEL_NODE_PARAMS_v1* params) {
    return add_node(node, graph, dependencies, count, nullptr, old_kernel_maker(params));
}
CUresult CUDAAPI cuGraphAddKernelNode_v2(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                                         size_t count, const CUDA_KERNEL_NODE_PARAMS* params) {
    return add_node(node, graph, dependencies, count, nullptr, kernel_maker(params));
}
CUresult CUDAAPI cuGraphAddMemcpyNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                                      const CUDA_MEMCPY3D* params, CUcontext context) {
    return add_node(node, graph, dependencies, count, nullptr, copy_maker(params, context));
}
CUresult CUDAAPI cuGraphAddMemsetNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                                      const CUDA_MEMSET_NODE_PARAMS* params, CUcontext context) {
    return add_node(node, graph, dependencies, count, nullptr, fill_maker(params, context));
}
CUresult CUDAAPI cuGraphAddHostNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                                    const CUDA_HOST_NODE_PARAMS* params) {
    return add_node(node, graph, dependencies, count, nullptr, host_maker(params));
}
CUresult CUDAAPI cuGraphAddChildGraphNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                                          size_t count, CUgraph child) {
    return add_node(node, graph, dependencies, count, nullptr,
                    [=](const Graph& parent, PayloadPtr& payload) GP_REQUIRES(graph_mutex()) {
                        return make_child(child, parent, CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE, payload);
                    });
}
CUresult CUDAAPI cuGraphAddEmptyNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, size_t count) {
    return add_node(node, graph, dependencies, count, nullptr, [](const Graph&, PayloadPtr& payload) {
        payload = empty_payload();
        return CUDA_SUCCESS;
    });
}
CUresult CUDAAPI cuGraphAddEventRecordNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                                           size_t count, CUevent event) {
    return add_node(node, graph, dependencies, count, nullptr, event_maker(event, true));
}
CUresult CUDAAPI cuGraphAddEventWaitNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                                         size_t count, CUevent event) {
    return add_node(node, graph, dependencies, count, nullptr, event_maker(event, false));
}
CUresult CUDAAPI cuGraphAddMemAllocNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                                        CUDA_MEM_ALLOC_NODE_PARAMS* params) {
    return add_node(node, graph, dependencies, count, nullptr,
                    [=](const Graph&, PayloadPtr& payload) { return make_allocation(params, payload); });
}
CUresult CUDAAPI cuGraphAddMemFreeNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                                       CUdeviceptr pointer) {
    return add_node(node, graph, dependencies, count, nullptr,
                    [=](const Graph& within, PayloadPtr& payload) { return make_free(pointer, &within, payload); });
}
CUresult CUDAAPI cuGraphAddBatchMemOpNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                                          size_t count, const CUDA_BATCH_MEM_OP_NODE_PARAMS* params) {
    return add_node(node, graph, dependencies, count, nullptr, operations_maker(params));
}
CUresult CUDAAPI cuGraphAddNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                                CUgraphNodeParams* params) {
    return add_node(node, graph, dependencies, count, nullptr, any_maker(params));
}
CUresult CUDAAPI cuGraphAddNode_v2(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                                   const CUgraphEdgeData* edges, size_t count, CUgraphNodeParams* params) {
    return add_node(node, graph, dependencies, count, edges, any_maker(params));
}

CUresult CUDAAPI cuGraphKernelNodeGetParams(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v1* params) {
    SOFTGPU_NOT_NULL(params);
    CUDA_KERNEL_NODE_PARAMS all{};
    const CUresult result = get_kernel(node, &all);
    if (result == CUDA_SUCCESS) {
        *params = {all.func,      all.gridDimX,  all.gridDimY,       all.gridDimZ,     all.blockDimX,
                   all.blockDimY, all.blockDimZ, all.sharedMemBytes, all.kernelParams, all.extra};
    }
    return result;
}
CUresult CUDAAPI cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS* params) {
    return get_kernel(node, params);
}
CUresult CUDAAPI cuGraphMemcpyNodeGetParams(CUgraphNode node, CUDA_MEMCPY3D* params) {
    return ask_node<CopyPayload>(node, params, [&](const CopyPayload& copy) { *params = copy.copy; });
}
CUresult CUDAAPI cuGraphMemsetNodeGetParams(CUgraphNode node, CUDA_MEMSET_NODE_PARAMS* params) {
    return ask_node<FillPayload>(node, params, [&](const FillPayload& fill) { *params = fill.fill; });
}
CUresult CUDAAPI cuGraphHostNodeGetParams(CUgraphNode node, CUDA_HOST_NODE_PARAMS* params) {
    return ask_node<HostPayload>(node, params, [&](const HostPayload& host) { *params = {host.function, host.data}; });
}
CUresult CUDAAPI cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph* graph) {
    return ask_node<ChildPayload>(
        node, graph, [&](const ChildPayload& child) { *graph = reinterpret_cast<CUgraph>(child.graph.get()); });
}
CUresult CUDAAPI cuGraphEventRecordNodeGetEvent(CUgraphNode node, CUevent* event) {
    return ask_node<RecordPayload>(
        node, event, [&](const RecordPayload& record) { *event = reinterpret_cast<CUevent>(record.event.get()); });
}
CUresult CUDAAPI cuGraphEventWaitNodeGetEvent(CUgraphNode node, CUevent* event) {
    return ask_node<WaitPayload>(
        node, event, [&](const WaitPayload& wait) { *event = reinterpret_cast<CUevent>(wait.event.get()); });
}
CUresult CUDAAPI cuGraphMemAllocNodeGetParams(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS* params) {
    return ask_node<AllocationPayload>(node, params,
                                       [&](const AllocationPayload& allocation) { *params = allocation.params; });
}
CUresult CUDAAPI cuGraphMemFreeNodeGetParams(CUgraphNode node, CUdeviceptr* pointer) {
    return ask_node<FreePayload>(node, pointer, [&](const FreePayload& free) { *pointer = free.pointer; });
}
CUresult CUDAAPI cuGraphBatchMemOpNodeGetParams(CUgraphNode node, CUDA_BATCH_MEM_OP_NODE_PARAMS* params) {
    return ask_node<MemoryOperationsPayload>(node, params, [&](const MemoryOperationsPayload& batch) {
        *params = {reinterpret_cast<CUcontext>(batch.context), static_cast<unsigned>(batch.operations.size()),
                   const_cast<CUstreamBatchMemOpParams*>(batch.operations.data()), batch.flags};
    });
}

CUresult CUDAAPI cuGraphKernelNodeSetParams(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1* params) {
    return change_node(nullptr, !kForExecutable, node, old_kernel_maker(params));
}
CUresult CUDAAPI cuGraphKernelNodeSetParams_v2(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS* params) {
    return change_node(nullptr, !kForExecutable, node, kernel_maker(params));
}
CUresult CUDAAPI cuGraphMemcpyNodeSetParams(CUgraphNode node, const CUDA_MEMCPY3D* params) {
    return change_node(nullptr, !kForExecutable, node, copy_maker(params, context_of<CopyPayload>(node)));
}
CUresult CUDAAPI cuGraphMemsetNodeSetParams(CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS* params) {
    return change_node(nullptr, !kForExecutable, node, fill_maker(params, context_of<FillPayload>(node)));
}
CUresult CUDAAPI cuGraphHostNodeSetParams(CUgraphNode node, const CUDA_HOST_NODE_PARAMS* params) {
    return change_node(nullptr, !kForExecutable, node, host_maker(params));
}
CUresult CUDAAPI cuGraphEventRecordNodeSetEvent(CUgraphNode node, CUevent event) {
    return change_node(nullptr, !kForExecutable, node, event_maker(event, true));
}
CUresult CUDAAPI cuGraphEventWaitNodeSetEvent(CUgraphNode node, CUevent event) {
    return change_node(nullptr, !kForExecutable, node, event_maker(event, false));
}
CUresult CUDAAPI cuGraphBatchMemOpNodeSetParams(CUgraphNode node, const CUDA_BATCH_MEM_OP_NODE_PARAMS* params) {
    return change_node(nullptr, !kForExecutable, node, operations_maker(params));
}
CUresult CUDAAPI cuGraphNodeSetParams(CUgraphNode node, CUgraphNodeParams* params) {
    // Child graphs and allocations cannot be changed.
    if (params != nullptr &&
        (params->type == CU_GRAPH_NODE_TYPE_GRAPH || params->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    return change_node(nullptr, !kForExecutable, node, any_maker(params));
}

CUresult CUDAAPI cuGraphExecKernelNodeSetParams(CUgraphExec executable, CUgraphNode node,
                                                const CUDA_KERNEL_NODE_PARAMS_v1* params) {
    return change_node(executable, kForExecutable, node, old_kernel_maker(params));
}
CUresult CUDAAPI cuGraphExecKernelNodeSetParams_v2(CUgraphExec executable, CUgraphNode node,
                                                   const CUDA_KERNEL_NODE_PARAMS* params) {
    return change_node(executable, kForExecutable, node, kernel_maker(params));
}
CUresult CUDAAPI cuGraphExecMemcpyNodeSetParams(CUgraphExec executable, CUgraphNode node, const CUDA_MEMCPY3D* params,
                                                CUcontext context) {
    return change_node(executable, kForExecutable, node, copy_maker(params, context));
}
CUresult CUDAAPI cuGraphExecMemsetNodeSetParams(CUgraphExec executable, CUgraphNode node,
                                                const CUDA_MEMSET_NODE_PARAMS* params, CUcontext context) {
    return change_node(executable, kForExecutable, node, fill_maker(params, context));
}
CUresult CUDAAPI cuGraphExecHostNodeSetParams(CUgraphExec executable, CUgraphNode node,
                                              const CUDA_HOST_NODE_PARAMS* params) {
    return change_node(executable, kForExecutable, node, host_maker(params));
}
CUresult CUDAAPI cuGraphExecEventRecordNodeSetEvent(CUgraphExec executable, CUgraphNode node, CUevent event) {
    return change_node(executable, kForExecutable, node, event_maker(event, true));
}
CUresult CUDAAPI cuGraphExecEventWaitNodeSetEvent(CUgraphExec executable, CUgraphNode node, CUevent event) {
    return change_node(executable, kForExecutable, node, event_maker(event, false));
}
CUresult CUDAAPI cuGraphExecBatchMemOpNodeSetParams(CUgraphExec executable, CUgraphNode node,
                                                    const CUDA_BATCH_MEM_OP_NODE_PARAMS* params) {
    return change_node(executable, kForExecutable, node, operations_maker(params));
}

CUresult CUDAAPI cuGraphExecNodeSetParams(CUgraphExec executable, CUgraphNode node, CUgraphNodeParams* params) {
    SOFTGPU_NOT_NULL(params);
    if (params->type == CU_GRAPH_NODE_TYPE_GRAPH) {
        return cuGraphExecChildGraphNodeSetParams(executable, node, params->graph.graph);
    }
    if (params->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    return change_node(executable, kForExecutable, node, any_maker(params));
}

CUresult CUDAAPI cuGraphKernelNodeGetAttribute(CUgraphNode handle, CUkernelNodeAttrID attribute,
                                               CUkernelNodeAttrValue* value) {
    if (!known_kernel_attribute(attribute)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return ask_node<KernelPayload>(handle, value, [&](const KernelPayload& kernel) {
        const auto found = kernel.attributes.find(attribute);
        *value = found == kernel.attributes.end() ? CUlaunchAttributeValue{} : found->second;
        if (attribute == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) {
            value->cooperative = kernel.call.cooperative ? 1 : 0;
        }
    });
}

CUresult CUDAAPI cuGraphKernelNodeSetAttribute(CUgraphNode handle, CUkernelNodeAttrID attribute,
                                               const CUkernelNodeAttrValue* value) {
    SOFTGPU_GRAPHS();
    SOFTGPU_NODE(handle, node);
    const auto* kernel = std::get_if<KernelPayload>(node->payload.get());
    if (value == nullptr || kernel == nullptr || !known_kernel_attribute(attribute)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (attribute == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) {
        const auto& cluster = value->clusterDim;
        if (cluster.x > 1 || cluster.y > 1 || cluster.z > 1) {
            return CUDA_ERROR_NOT_SUPPORTED;
        }
    }
    node->payload = kernel_with(*kernel, attribute, *value);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuGraphKernelNodeCopyAttributes(CUgraphNode to_handle, CUgraphNode from_handle) {
    SOFTGPU_GRAPHS();
    SOFTGPU_NODE(to_handle, to);
    SOFTGPU_NODE(from_handle, from);
    const auto* source = std::get_if<KernelPayload>(from->payload.get());
    if (source == nullptr || !std::holds_alternative<KernelPayload>(*to->payload)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (const auto& [attribute, value] : source->attributes) {
        to->payload = kernel_with(std::get<KernelPayload>(*to->payload), attribute, value);
    }
    return CUDA_SUCCESS;
}

}  // extern "C"
