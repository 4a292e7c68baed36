#include "server/softgpu/graph/payload.h"

#include <algorithm>

#include "server/softgpu/api/copy.h"
#include "server/softgpu/api/memory_operations.h"
#include "server/softgpu/exec/texture.h"
#include "server/softgpu/graph/capture.h"

namespace gpupool::softgpu {
namespace {

constexpr unsigned kMaxSwitchGraphs = 4096;

PayloadPtr share(Payload payload) {
    return std::make_shared<const Payload>(std::move(payload));
}

// The addresses point into the payload, so it must not move afterwards.
PayloadPtr share_kernel(KernelPayload kernel) {
    auto result = std::make_shared<Payload>(std::move(kernel));
    auto& made = std::get<KernelPayload>(*result);
    auto* base = reinterpret_cast<std::uint8_t*>(made.call.params.data());
    made.addresses.clear();
    for (const auto& param : made.call.function->code->params) {
        made.addresses.push_back(base + param.offset_bytes);
    }
    made.packed_bytes = made.call.function->code->param_bytes;
    made.extra = {CU_LAUNCH_PARAM_BUFFER_POINTER, base, CU_LAUNCH_PARAM_BUFFER_SIZE, &made.packed_bytes,
                  CU_LAUNCH_PARAM_END};
    return result;
}

CUresult named_context(CUcontext handle, Context*& result) {
    ContextPtr context;
    if (handle == nullptr) {
        if (const CUresult error = current_context(context); error != CUDA_SUCCESS) {
            return error;
        }
    } else {
        context = state().contexts.find(handle);
        if (context == nullptr || !context->active.load()) {
            return CUDA_ERROR_INVALID_CONTEXT;
        }
    }
    result = context.get();  // contexts are never deleted
    return CUDA_SUCCESS;
}

// The context of a node that uses memory. If it names none, the first device memory among the addresses decides.
CUresult context_of_node(CUcontext handle, std::initializer_list<std::uint64_t> addresses, Context*& result) {
    Allocation memory;
    for (const std::uint64_t address : addresses) {
        if (handle == nullptr && state().allocations.find(address, memory) && !memory.on_host()) {
            result = memory.context != nullptr ? memory.context : state().devices[memory.device]->primary.get();
            return CUDA_SUCCESS;
        }
    }
    return named_context(handle, result);
}

// Without a context, the driver fills only memory that belongs to one: not mapped, of a pool, or of a graph.
bool needs_context(std::uint64_t address) {
    Allocation memory;
    return state().allocations.find(address, memory) &&
           (memory.kind == MemoryKind::mapped || memory.pool != nullptr || memory.graph_memory != nullptr);
}

}  // namespace

bool known_kernel_attribute(int attribute) {
    switch (attribute) {
        case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
        case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
        case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
        case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
        case CU_LAUNCH_ATTRIBUTE_PRIORITY:
        case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
        case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
        case CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
        case CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE: return true;
        default: return false;
    }
}

PayloadPtr kernel_payload(KernelCall call) {
    KernelPayload kernel;
    kernel.call = std::move(call);
    return share_kernel(std::move(kernel));
}

PayloadPtr copy_payload(const CUDA_MEMCPY3D& copy, Context& context) {
    return share(CopyPayload{copy, &context});
}

PayloadPtr fill_payload(const CUDA_MEMSET_NODE_PARAMS& fill, Context& context) {
    return share(FillPayload{fill, &context});
}

PayloadPtr host_payload(CUhostFn function, void* data) {
    return share(HostPayload{function, data});
}

PayloadPtr event_payload(std::shared_ptr<Event> event, bool record) {
    return record ? share(RecordPayload{std::move(event)}) : share(WaitPayload{std::move(event)});
}

PayloadPtr operations_payload(const std::vector<CUstreamBatchMemOpParams>& operations, unsigned flags,
                              Context& context) {
    return share(MemoryOperationsPayload{&context, operations, flags});
}

PayloadPtr empty_payload() {
    return share(EmptyPayload{});
}

PayloadPtr kernel_with(const KernelPayload& kernel, int attribute, const CUlaunchAttributeValue& value) {
    KernelPayload changed = kernel;
    changed.attributes[attribute] = value;
    if (attribute == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) {
        changed.call.cooperative = value.cooperative != 0;
    }
    return share_kernel(std::move(changed));
}

CUresult make_kernel(const CUDA_KERNEL_NODE_PARAMS& params, PayloadPtr& payload) {
    if (state().kernels.find(params.func) != nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;  // a kernel belongs into `kern`
    }
    KernelRequest request{params.func != nullptr ? params.func : reinterpret_cast<CUfunction>(params.kern),
                          {params.gridDimX, params.gridDimY, params.gridDimZ},
                          {params.blockDimX, params.blockDimY, params.blockDimZ},
                          params.sharedMemBytes,
                          params.kernelParams,
                          params.extra,
                          false};
    if (request.function == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    KernelPayload kernel;
    if (const CUresult error = make_kernel_call(request, kernel.call); error != CUDA_SUCCESS) {
        return error;
    }
    kernel.packed = request.extra != nullptr;
    payload = share_kernel(std::move(kernel));
    return CUDA_SUCCESS;
}

CUresult make_copy(const CUDA_MEMCPY3D* params, CUcontext handle, PayloadPtr& payload) {
    SOFTGPU_NOT_NULL(params);
    Context* context = nullptr;
    const std::uint64_t from = params->srcMemoryType == CU_MEMORYTYPE_DEVICE ? params->srcDevice : 0;
    const std::uint64_t to = params->dstMemoryType == CU_MEMORYTYPE_DEVICE ? params->dstDevice : 0;
    if (const CUresult error = context_of_node(handle, {from, to}, context); error != CUDA_SUCCESS) {
        return error;
    }
    Copy copy;
    if (const CUresult error = place_copy(*params, copy); error != CUDA_SUCCESS) {
        return error;
    }
    if (const CUresult error = check_copy(copy); error != CUDA_SUCCESS) {
        return error;
    }
    payload = copy_payload(*params, *context);
    return CUDA_SUCCESS;
}

CUresult make_fill(const CUDA_MEMSET_NODE_PARAMS* params, CUcontext handle, PayloadPtr& payload) {
    SOFTGPU_NOT_NULL(params);
    if (handle == nullptr && needs_context(params->dst)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    Context* context = nullptr;
    if (const CUresult error = context_of_node(handle, {params->dst}, context); error != CUDA_SUCCESS) {
        return error;
    }
    if (const CUresult error = check_fill(*params); error != CUDA_SUCCESS) {
        return error;
    }
    payload = fill_payload(*params, *context);
    return CUDA_SUCCESS;
}

CUresult make_host(const CUDA_HOST_NODE_PARAMS* params, PayloadPtr& payload) {
    SOFTGPU_NOT_NULL(params);
    SOFTGPU_NOT_NULL(params->fn);
    payload = host_payload(params->fn, params->userData);
    return CUDA_SUCCESS;
}

CUresult make_event(CUevent handle, bool record, PayloadPtr& payload) {
    auto event = state().events.find(handle);
    if (event == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    payload = event_payload(std::move(event), record);
    return CUDA_SUCCESS;
}

CUresult make_allocation(CUDA_MEM_ALLOC_NODE_PARAMS* params, PayloadPtr& payload) {
    SOFTGPU_NOT_NULL(params);
    if (params->bytesize == 0 || params->poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
        params->poolProps.allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
        (params->accessDescs == nullptr && params->accessDescCount != 0)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (params->poolProps.handleTypes != CU_MEM_HANDLE_TYPE_NONE) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    Device* device = nullptr;
    if (find_device(params->poolProps.location.id, device) != CUDA_SUCCESS) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    AllocationPayload made;
    made.memory = GraphMemory::reserve(*device, params->bytesize);
    if (made.memory == nullptr) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    made.access.assign(params->accessDescs, params->accessDescs + params->accessDescCount);
    params->dptr = made.memory->address();
    made.params = *params;
    auto shared = std::make_shared<Payload>(std::move(made));
    // Points to the node's copy instead of the caller's memory.
    auto& kept = std::get<AllocationPayload>(*shared);
    kept.params.accessDescs = kept.access.empty() ? nullptr : kept.access.data();
    payload = std::move(shared);
    return CUDA_SUCCESS;
}

CUresult make_free(CUdeviceptr pointer, const Graph* parent, PayloadPtr& payload) {
    const auto frees_it = [=](const NodePtr& node) {
        const auto* free = std::get_if<FreePayload>(node->payload.get());
        return free != nullptr && free->pointer == pointer;
    };
    if (parent != nullptr && std::any_of(parent->nodes.begin(), parent->nodes.end(), frees_it)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    auto memory = GraphMemory::find(pointer);
    if (memory == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;  // a graph frees only what a graph has allocated
    }
    payload = share(FreePayload{pointer, std::move(memory)});
    return CUDA_SUCCESS;
}

CUresult make_operations(const CUDA_BATCH_MEM_OP_NODE_PARAMS* params, PayloadPtr& payload) {
    SOFTGPU_NOT_NULL(params);
    Context* context = nullptr;
    if (const CUresult error = named_context(params->ctx, context); error != CUDA_SUCCESS) {
        return error;
    }
    const CUresult error = check_operations(params->count, params->paramArray, params->flags);
    if (error != CUDA_SUCCESS) {
        return error;
    }
    payload = share(
        MemoryOperationsPayload{context, {params->paramArray, params->paramArray + params->count}, params->flags});
    return CUDA_SUCCESS;
}

CUresult make_child(CUgraph handle, const Graph& parent, CUgraphChildGraphNodeOwnership ownership,
                    PayloadPtr& payload) {
    const auto graph = graphs().graphs.find(handle);
    if (graph == nullptr || graph.get() == &parent || graph->capturing) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (ownership == CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE) {
        if (graph->is_child) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        graph->is_child = true;
        payload = share(ChildPayload{graph});
        return CUDA_SUCCESS;
    }
    if (ownership != CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    // Memory of a graph has one address, and a condition one word, so the graph cannot exist twice.
    if (graph->holds_memory_nodes() || graph->holds_conditional_nodes()) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    GraphPtr child = graph->clone(true);
    child->is_child = true;
    graphs().graphs.add(child);
    payload = share(ChildPayload{std::move(child)});
    return CUDA_SUCCESS;
}

namespace {

// A graph's condition, for which `graph` may have a node: its own.
std::shared_ptr<GraphCondition> condition_of(const Graph& graph, CUgraphConditionalHandle handle) {
    const auto found = std::find_if(graph.conditions->begin(), graph.conditions->end(),
                                    [&](const auto& condition) { return condition->handle() == handle; });
    return found == graph.conditions->end() ? nullptr : *found;
}

CUresult make_conditional(CUDA_CONDITIONAL_NODE_PARAMS& params, const Graph& parent, PayloadPtr& payload)
    GP_REQUIRES(graph_mutex()) {
    auto condition = condition_of(parent, params.handle);
    const bool known = params.type == CU_GRAPH_COND_TYPE_IF || params.type == CU_GRAPH_COND_TYPE_WHILE ||
                       params.type == CU_GRAPH_COND_TYPE_SWITCH;
    const unsigned most = params.type == CU_GRAPH_COND_TYPE_IF      ? 2
                          : params.type == CU_GRAPH_COND_TYPE_WHILE ? 1
                                                                    : kMaxSwitchGraphs;
    if (condition == nullptr || condition->used() || !known || params.size == 0 || params.size > most) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    condition->use();
    ConditionalPayload made;
    made.condition = std::move(condition);
    made.type = params.type;
    for (unsigned i = 0; i < params.size; ++i) {
        auto body = std::make_shared<Graph>();
        body->id = state().next_id.fetch_add(1);
        body->is_child = body->is_body = true;
        body->conditions = parent.conditions;
        graphs().graphs.add(body);
        made.handles.push_back(reinterpret_cast<CUgraph>(body.get()));
        made.bodies.push_back(std::move(body));
    }
    auto shared = std::make_shared<Payload>(std::move(made));
    params.phGraph_out = std::get<ConditionalPayload>(*shared).handles.data();
    payload = std::move(shared);
    return CUDA_SUCCESS;
}

}  // namespace

CUresult make_any(CUgraphNodeParams* params, const Graph& parent, PayloadPtr& payload) {
    SOFTGPU_NOT_NULL(params);
    if (std::any_of(params->reserved0, params->reserved0 + 3, [](int r) { return r != 0; }) || params->reserved2 != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    switch (params->type) {
        case CU_GRAPH_NODE_TYPE_KERNEL: {
            const auto& k = params->kernel;
            return make_kernel({k.func, k.gridDimX, k.gridDimY, k.gridDimZ, k.blockDimX, k.blockDimY, k.blockDimZ,
                                k.sharedMemBytes, k.kernelParams, k.extra, k.kern, k.ctx},
                               payload);
        }
        case CU_GRAPH_NODE_TYPE_MEMCPY: return make_copy(&params->memcpy.copyParams, params->memcpy.copyCtx, payload);
        case CU_GRAPH_NODE_TYPE_MEMSET: {
            const auto& m = params->memset;
            const CUDA_MEMSET_NODE_PARAMS fill{m.dst, m.pitch, m.value, m.elementSize, m.width, m.height};
            return make_fill(&fill, m.ctx, payload);
        }
        case CU_GRAPH_NODE_TYPE_HOST: {
            const CUDA_HOST_NODE_PARAMS host{params->host.fn, params->host.userData};
            return make_host(&host, payload);
        }
        case CU_GRAPH_NODE_TYPE_GRAPH: return make_child(params->graph.graph, parent, params->graph.ownership, payload);
        case CU_GRAPH_NODE_TYPE_EMPTY: payload = empty_payload(); return CUDA_SUCCESS;
        case CU_GRAPH_NODE_TYPE_WAIT_EVENT: return make_event(params->eventWait.event, false, payload);
        case CU_GRAPH_NODE_TYPE_EVENT_RECORD: return make_event(params->eventRecord.event, true, payload);
        case CU_GRAPH_NODE_TYPE_MEM_ALLOC: {
            const auto& a = params->alloc;
            CUDA_MEM_ALLOC_NODE_PARAMS made{a.poolProps, a.accessDescs, a.accessDescCount, a.bytesize, 0};
            const CUresult result = make_allocation(&made, payload);
            if (result == CUDA_SUCCESS) {
                params->alloc.dptr = made.dptr;
            }
            return result;
        }
        case CU_GRAPH_NODE_TYPE_MEM_FREE: return make_free(params->free.dptr, &parent, payload);
        case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: {
            const auto& b = params->memOp;
            const CUDA_BATCH_MEM_OP_NODE_PARAMS operations{b.ctx, b.count, b.paramArray, b.flags};
            return make_operations(&operations, payload);
        }
        case CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL:
        case CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT: return CUDA_ERROR_NOT_SUPPORTED;
        case CU_GRAPH_NODE_TYPE_CONDITIONAL: return make_conditional(params->conditional, parent, payload);
        default: return CUDA_ERROR_INVALID_VALUE;
    }
}

namespace {

struct Runner {
    Context& context;
    const std::shared_ptr<Moment>& moment;

    CUresult operator()(const KernelPayload& kernel) const {
        return run_kernel(kernel.call, context, TextureTable::instance().generation());
    }
    CUresult operator()(const CopyPayload& payload) const {
        Copy copy;
        if (const CUresult error = place_copy(payload.copy, copy); error != CUDA_SUCCESS) {
            return error;
        }
        if (const CUresult error = check_copy(copy); error != CUDA_SUCCESS) {
            return CUDA_ERROR_ILLEGAL_ADDRESS;
        }
        return run_copy(copy, context);
    }
    CUresult operator()(const FillPayload& payload) const { return run_fill(payload.fill); }
    CUresult operator()(const HostPayload& host) const { return run_host_function(context, host.function, host.data); }
    CUresult operator()(const ChildPayload&) const { return CUDA_SUCCESS; }        // the plan runs its nodes as steps
    CUresult operator()(const ConditionalPayload&) const { return CUDA_SUCCESS; }  // so do these nodes' graphs
    CUresult operator()(const EmptyPayload&) const { return CUDA_SUCCESS; }
    CUresult operator()(const WaitPayload& wait) const {
        std::shared_ptr<Moment> recorded;
        {
            const Lock lock(wait.event->mutex);
            recorded = wait.event->moment;
        }
        if (recorded != nullptr) {
            recorded->wait(context.stop);
        }
        return CUDA_SUCCESS;
    }
    CUresult operator()(const RecordPayload&) const {
        moment->reach();
        return CUDA_SUCCESS;
    }
    CUresult operator()(const AllocationPayload& allocation) const { return allocation.memory->allocate(context); }
    CUresult operator()(const FreePayload& free) const { return free.memory->free(); }
    CUresult operator()(const MemoryOperationsPayload& batch) const {
        return run_operations(batch.operations, context);
    }
};

}  // namespace

CUresult run_payload(const Payload& payload, Context& context, const std::shared_ptr<Moment>& moment) {
    return std::visit(Runner{context, moment}, payload);
}

}  // namespace gpupool::softgpu
