// Nodes of graphs: adding and changing them. graph_node_queries.cpp has the queries.

#include "client/calls/graph_nodes.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "client/calls/copy_shapes.h"
#include "client/calls/graph_verdicts.h"
#include "client/calls/handlers.h"
#include "client/calls/launch_arguments.h"
#include "client/calls/launch_config.h"
#include "client/core/dispatch/remote.h"

namespace gpupool::client {
namespace {

CUresult kernel_message(const CUDA_KERNEL_NODE_PARAMS_v3& p, NodeMessage& message) {
    GraphNode& node = message.node;
    CUfunction function = function_in(p);
    if (codec::kind_of(codec::to_wire(p.func)) == codec::HandleKind::kernel) {
        return CUDA_ERROR_INVALID_HANDLE;  // a kernel belongs into `kern`
    }
    if (const CUresult result = launchable(function); result != CUDA_SUCCESS) {
        return result;
    }
    const auto info = function_info(function);
    if (info == nullptr) {
        return function == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
    }
    ArgumentBlock arguments;
    if (const CUresult result = arguments.pack(*info, p.kernelParams, p.extra); result != CUDA_SUCCESS) {
        return result;
    }
    arguments.give_to_gpu(this_session());
    node.function = function;
    node.context = p.func != nullptr ? nullptr : p.ctx;
    node.grid_x = p.gridDimX;
    node.grid_y = p.gridDimY;
    node.grid_z = p.gridDimZ;
    node.block_x = p.blockDimX;
    node.block_y = p.blockDimY;
    node.block_z = p.blockDimZ;
    node.shared_bytes = p.sharedMemBytes;
    message.payload.assign(arguments.data(), arguments.data() + arguments.bytes());
    return CUDA_SUCCESS;
}

// Where the program names no context, the driver takes that of the memory. It cannot tell the context of gpupool's
// allocations, because cuMemMap makes them.
CUcontext context_of(std::initializer_list<CUdeviceptr> addresses) {
    for (const CUdeviceptr address : addresses) {
        const std::optional<MemoryRange> range = this_session().memory.find(address);
        if (range && range->on_device() && range->context != nullptr) {
            return range->context->handle;
        }
    }
    ContextState* current = nullptr;
    return usable_context(current) == CUDA_SUCCESS ? current->handle : nullptr;
}

// Would the driver refuse the fill? It names no context, and memory of a pool, of a graph or of cuMemMap belongs to
// none.
bool is_without_context(const CUDA_MEMSET_NODE_PARAMS_v2& fill) {
    const auto range = fill.ctx == nullptr ? this_session().memory.find(fill.dst) : std::nullopt;
    return range && (range->kind == MemoryKind::pool || range->kind == MemoryKind::mapped);
}

CUresult copy_message(const CUDA_MEMCPY_NODE_PARAMS& p, NodeMessage& message) {
    CUDA_MEMCPY3D& copy = message.node.copy;
    copy = p.copyParams;
    resolve_unified(this_session(), copy);
    if (!is_empty(copy) && (is_too_large(copy) || !may_hold(this_session(), copy))) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    message.node.context = p.copyCtx != nullptr
                               ? p.copyCtx
                               : context_of({copy.srcMemoryType == CU_MEMORYTYPE_DEVICE ? copy.srcDevice : 0,
                                             copy.dstMemoryType == CU_MEMORYTYPE_DEVICE ? copy.dstDevice : 0});
    return name_host_memory(copy);
}

template <class T>
CUresult take_array(NodeMessage& message, const T* elements, std::size_t count, std::size_t most) {
    if (count > most || (count != 0 && elements == nullptr)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    message.node.count = static_cast<std::uint32_t>(count);
    message.payload.resize(count * sizeof(T));
    if (count != 0) {
        std::memcpy(message.payload.data(), elements, message.payload.size());
    }
    return CUDA_SUCCESS;
}

}  // namespace

CUresult to_message(const CUgraphNodeParams& p, NodeMessage& message) {
    GraphNode& node = message.node;
    node.type = static_cast<int>(p.type);
    switch (p.type) {
        case CU_GRAPH_NODE_TYPE_KERNEL: return kernel_message(p.kernel, message);
        case CU_GRAPH_NODE_TYPE_MEMCPY: return copy_message(p.memcpy, message);
        case CU_GRAPH_NODE_TYPE_MEMSET:
            if (is_without_context(p.memset)) {
                return CUDA_ERROR_INVALID_VALUE;
            }
            give_to_gpu(this_session(), p.memset.dst);
            node.address = p.memset.dst;
            node.pitch_bytes = p.memset.pitch;
            node.value = p.memset.value;
            node.element_bytes = p.memset.elementSize;
            node.width = p.memset.width;
            node.height = p.memset.height;
            node.context = p.memset.ctx != nullptr ? p.memset.ctx : context_of({p.memset.dst});
            return CUDA_SUCCESS;
        case CU_GRAPH_NODE_TYPE_HOST:
            if (p.host.fn == nullptr) {
                return CUDA_ERROR_INVALID_VALUE;
            }
            node.host_function = this_session().graph_hosts.name_function({p.host.fn, p.host.userData});
            return node.host_function == 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
        case CU_GRAPH_NODE_TYPE_GRAPH:
            node.graph = p.graph.graph;
            node.flags = static_cast<std::uint32_t>(p.graph.ownership);
            return CUDA_SUCCESS;
        case CU_GRAPH_NODE_TYPE_EMPTY: return CUDA_SUCCESS;
        case CU_GRAPH_NODE_TYPE_WAIT_EVENT: node.event = p.eventWait.event; return CUDA_SUCCESS;
        case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
            node.event = p.eventRecord.event;
            this_session().events.always_ask(node.event);
            return CUDA_SUCCESS;
        case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
            node.pool = p.alloc.poolProps;
            node.bytes = p.alloc.bytesize;
            return take_array(message, p.alloc.accessDescs, p.alloc.accessDescCount, 64);
        case CU_GRAPH_NODE_TYPE_MEM_FREE: node.address = p.free.dptr; return CUDA_SUCCESS;
        case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
            node.context = p.memOp.ctx;
            node.flags = p.memOp.flags;
            give_to_gpu(this_session(), p.memOp.paramArray, p.memOp.count);
            return take_array(message, p.memOp.paramArray, p.memOp.count, kMaxOperations);
        case CU_GRAPH_NODE_TYPE_CONDITIONAL:
            node.condition = p.conditional.handle;
            node.condition_type = static_cast<int>(p.conditional.type);
            node.count = p.conditional.size;
            node.context = p.conditional.ctx;
            return CUDA_SUCCESS;
        default: return CUDA_ERROR_NOT_SUPPORTED;  // semaphores of other APIs of this machine
    }
}

void keep_storage(CUgraphNode node, NodeStorage storage) {
    Session& s = this_session();
    const std::optional<Graphs::Node> known = s.graphs.find_node(node);
    s.node_storages.put(node, known ? known->graph : nullptr, std::move(storage));
}

CUresult set_node(CUgraphExec executable, CUgraphNode changed, const CUgraphNodeParams& parameters) {
    NodeMessage message;
    const CUresult result = to_message(parameters, message);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    Graphs& graphs = this_session().graphs;
    const std::optional<Graphs::Node> known = graphs.find_node(changed);
    const bool sure = known && surely_changed(executable, *known, parameters);
    if (known && !sure) {
        graphs.forget_node(changed);  // it may differ from what is known, from here on
    }
    if (sure && executable != nullptr) {
        this_session().wait_for_changes_of(executable);
    }
    if (!sure && executable != nullptr) {
        graphs.note_needs_room(executable, true);  // another kernel may need more local memory
    }
    const WaitForReplies ask_the_driver(!sure);
    return remote<calls::gpGraphNodeSetParams>(executable, changed, &message.node,
                                               static_cast<const unsigned char*>(message.payload.data()),
                                               message.payload.size());
}

namespace entry {
namespace {

// ---- conversions of one type's parameters to CUgraphNodeParams

CUgraphNodeParams of_type(CUgraphNodeType type) {
    CUgraphNodeParams p;
    std::memset(static_cast<void*>(&p), 0, sizeof p);
    p.type = type;
    return p;
}

CUgraphNodeParams kernel_node(const CUDA_KERNEL_NODE_PARAMS_v1& given) {
    CUgraphNodeParams p = of_type(CU_GRAPH_NODE_TYPE_KERNEL);
    std::memcpy(&p.kernel, &given, sizeof given);  // later versions only append fields
    return p;
}

CUgraphNodeParams kernel_node(const CUDA_KERNEL_NODE_PARAMS_v2& given) {
    CUgraphNodeParams p = of_type(CU_GRAPH_NODE_TYPE_KERNEL);
    std::memcpy(&p.kernel, &given, sizeof given);
    return p;
}

CUgraphNodeParams copy_node(const CUDA_MEMCPY3D& given, CUcontext ctx) {
    CUgraphNodeParams p = of_type(CU_GRAPH_NODE_TYPE_MEMCPY);
    p.memcpy.copyParams = given;
    p.memcpy.copyCtx = ctx;
    return p;
}

CUgraphNodeParams memset_node(const CUDA_MEMSET_NODE_PARAMS& given, CUcontext ctx) {
    CUgraphNodeParams p = of_type(CU_GRAPH_NODE_TYPE_MEMSET);
    std::memcpy(&p.memset, &given, sizeof given);
    p.memset.ctx = ctx;
    return p;
}

CUgraphNodeParams host_node(const CUDA_HOST_NODE_PARAMS& given) {
    CUgraphNodeParams p = of_type(CU_GRAPH_NODE_TYPE_HOST);
    p.host.fn = given.fn;
    p.host.userData = given.userData;
    return p;
}

CUgraphNodeParams event_node(CUgraphNodeType type, CUevent event) {
    CUgraphNodeParams p = of_type(type);
    p.eventRecord.event = event;  // eventWait has the same layout
    return p;
}

CUgraphNodeParams operations_node(const CUDA_BATCH_MEM_OP_NODE_PARAMS& given) {
    CUgraphNodeParams p = of_type(CU_GRAPH_NODE_TYPE_BATCH_MEM_OP);
    p.memOp.ctx = given.ctx;
    p.memOp.count = given.count;
    p.memOp.paramArray = given.paramArray;
    p.memOp.flags = given.flags;
    return p;
}

CUgraphNodeParams child_node(CUgraph child) {
    CUgraphNodeParams p = of_type(CU_GRAPH_NODE_TYPE_GRAPH);
    p.graph.graph = child;
    return p;
}

// Where a node is added.
struct GraphPlace {
    CUgraph graph;
    const CUgraphNode* dependencies;
    const CUgraphEdgeData* edges;  // null: edges without data
    std::size_t count;
};

void note_child(const CUDA_CHILD_GRAPH_NODE_PARAMS& child, CUgraph parent, CUgraphNode node) {
    Session& s = this_session();
    s.user_objects.add_child(child.graph, parent, node);
    if (child.ownership != CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE) {
        return;
    }
    s.graphs.remove(child.graph);  // only the driver knows what may still be done with it
    s.graph_memories.move(child.graph, parent);
    UserObjects::Destructors none;
    s.user_objects.destroy(child.graph, none);  // the node has its references now
}

CUresult add_plain(CUgraphNode& created, const GraphPlace& place, const CUgraphNodeParams& p,
                   const NodeMessage& message) {
    const bool sure = surely_added(place.graph, place.dependencies, place.count, place.edges, p);
    if (sure) {
        this_session().wait_while_set_aside();
    }
    const WaitForReplies ask_the_driver(!sure);
    const CUresult result = remote<calls::gpGraphAddNode>(
        &created, place.graph, place.dependencies, place.edges, place.count, place.edges == nullptr ? 0 : place.count,
        &message.node, static_cast<const unsigned char*>(message.payload.data()), message.payload.size());
    if (result == CUDA_SUCCESS) {
        this_session().graphs.add_node(created, place.graph, p.type, function_of(p));
        if (p.type == CU_GRAPH_NODE_TYPE_GRAPH) {
            note_child(p.graph, place.graph, created);
        }
        if (p.type == CU_GRAPH_NODE_TYPE_MEM_FREE) {
            this_session().graph_memories.add(place.graph, p.free.dptr, GraphMemories::Does::frees);
        }
    }
    return result;
}

// Adds a node that allocates memory or has graphs of its own. Waits, because only the driver knows the new address or
// graphs.
CUresult add_owning(CUgraphNode& created, const GraphPlace& place, CUgraphNodeParams& p, const NodeMessage& message) {
    const bool conditional = p.type == CU_GRAPH_NODE_TYPE_CONDITIONAL;
    constexpr unsigned kMaxGraphs = 1024;
    if (conditional && (p.conditional.size == 0 || p.conditional.size > kMaxGraphs)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUdeviceptr address = 0;
    std::vector<CUgraph> graphs(conditional ? p.conditional.size : 0);
    const CUresult result = remote<calls::gpGraphAddOwningNode>(
        &created, place.graph, place.dependencies, place.edges, place.count, place.edges == nullptr ? 0 : place.count,
        &message.node, static_cast<const unsigned char*>(message.payload.data()), message.payload.size(), &address,
        graphs.data(), graphs.size());
    if (result != CUDA_SUCCESS) {
        return result;
    }
    this_session().graphs.add_node(created, place.graph, p.type, nullptr);
    if (conditional) {
        p.conditional.phGraph_out = graphs.data();
        keep_storage(created, {{}, {}, std::move(graphs)});
        return CUDA_SUCCESS;
    }
    p.alloc.dptr = address;
    ContextState* const context = this_thread().current();
    if (address != 0 && context != nullptr) {
        MemoryRange range{address, p.alloc.bytesize, MemoryKind::pool, context->device, &context->owner()};
        range.of_graph = range.idle = true;
        this_session().memory.add(range);
        this_session().graph_memories.add(place.graph, address, GraphMemories::Does::allocates);
    }
    return CUDA_SUCCESS;
}

CUresult add_node(CUgraphNode* created, CUgraph graph, const CUgraphNode* dependencies, const CUgraphEdgeData* edges,
                  std::size_t count, CUgraphNodeParams& p) {
    if (created == nullptr || (count != 0 && dependencies == nullptr)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    NodeMessage message;
    CUresult result = to_message(p, message);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    const GraphPlace place{graph, dependencies, edges, count};
    CUgraphNode node = nullptr;
    result = is_owning_node(p.type) ? add_owning(node, place, p, message) : add_plain(node, place, p, message);
    if (result == CUDA_SUCCESS) {
        *created = node;
    }
    return result;
}

CUresult add_node(CUgraphNode* created, CUgraph graph, const CUgraphNode* dependencies, std::size_t count,
                  CUgraphNodeParams p) {
    return add_node(created, graph, dependencies, nullptr, count, p);
}

}  // namespace

// ---- adding

CUresult cuGraphAddKernelNode(CUgraphNode* phGraphNode, CUgraph hGraph, const CUgraphNode* dependencies,
                              std::size_t numDependencies, const CUDA_KERNEL_NODE_PARAMS_v1* nodeParams) {
    return nodeParams == nullptr
               ? CUDA_ERROR_INVALID_VALUE
               : add_node(phGraphNode, hGraph, dependencies, numDependencies, kernel_node(*nodeParams));
}

CUresult cuGraphAddKernelNode_v2(CUgraphNode* phGraphNode, CUgraph hGraph, const CUgraphNode* dependencies,
                                 std::size_t numDependencies, const CUDA_KERNEL_NODE_PARAMS_v2* nodeParams) {
    return nodeParams == nullptr
               ? CUDA_ERROR_INVALID_VALUE
               : add_node(phGraphNode, hGraph, dependencies, numDependencies, kernel_node(*nodeParams));
}

CUresult cuGraphAddMemcpyNode(CUgraphNode* phGraphNode, CUgraph hGraph, const CUgraphNode* dependencies,
                              std::size_t numDependencies, const CUDA_MEMCPY3D* copyParams, CUcontext ctx) {
    return copyParams == nullptr
               ? CUDA_ERROR_INVALID_VALUE
               : add_node(phGraphNode, hGraph, dependencies, numDependencies, copy_node(*copyParams, ctx));
}

CUresult cuGraphAddMemsetNode(CUgraphNode* phGraphNode, CUgraph hGraph, const CUgraphNode* dependencies,
                              std::size_t numDependencies, const CUDA_MEMSET_NODE_PARAMS* memsetParams, CUcontext ctx) {
    return memsetParams == nullptr
               ? CUDA_ERROR_INVALID_VALUE
               : add_node(phGraphNode, hGraph, dependencies, numDependencies, memset_node(*memsetParams, ctx));
}

CUresult cuGraphAddHostNode(CUgraphNode* phGraphNode, CUgraph hGraph, const CUgraphNode* dependencies,
                            std::size_t numDependencies, const CUDA_HOST_NODE_PARAMS* nodeParams) {
    return nodeParams == nullptr ? CUDA_ERROR_INVALID_VALUE
                                 : add_node(phGraphNode, hGraph, dependencies, numDependencies, host_node(*nodeParams));
}

CUresult cuGraphAddChildGraphNode(CUgraphNode* phGraphNode, CUgraph hGraph, const CUgraphNode* dependencies,
                                  std::size_t numDependencies, CUgraph childGraph) {
    return add_node(phGraphNode, hGraph, dependencies, numDependencies, child_node(childGraph));
}

CUresult cuGraphAddEmptyNode(CUgraphNode* phGraphNode, CUgraph hGraph, const CUgraphNode* dependencies,
                             std::size_t numDependencies) {
    return add_node(phGraphNode, hGraph, dependencies, numDependencies, of_type(CU_GRAPH_NODE_TYPE_EMPTY));
}

CUresult cuGraphAddEventRecordNode(CUgraphNode* phGraphNode, CUgraph hGraph, const CUgraphNode* dependencies,
                                   std::size_t numDependencies, CUevent event) {
    return add_node(phGraphNode, hGraph, dependencies, numDependencies,
                    event_node(CU_GRAPH_NODE_TYPE_EVENT_RECORD, event));
}

CUresult cuGraphAddEventWaitNode(CUgraphNode* phGraphNode, CUgraph hGraph, const CUgraphNode* dependencies,
                                 std::size_t numDependencies, CUevent event) {
    return add_node(phGraphNode, hGraph, dependencies, numDependencies,
                    event_node(CU_GRAPH_NODE_TYPE_WAIT_EVENT, event));
}

CUresult cuGraphAddMemAllocNode(CUgraphNode* phGraphNode, CUgraph hGraph, const CUgraphNode* dependencies,
                                std::size_t numDependencies, CUDA_MEM_ALLOC_NODE_PARAMS* nodeParams) {
    if (nodeParams == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUgraphNodeParams p = of_type(CU_GRAPH_NODE_TYPE_MEM_ALLOC);
    p.alloc.poolProps = nodeParams->poolProps;
    p.alloc.accessDescs = nodeParams->accessDescs;
    p.alloc.accessDescCount = nodeParams->accessDescCount;
    p.alloc.bytesize = nodeParams->bytesize;
    const CUresult result = add_node(phGraphNode, hGraph, dependencies, nullptr, numDependencies, p);
    if (result == CUDA_SUCCESS) {
        nodeParams->dptr = p.alloc.dptr;
    }
    return result;
}

CUresult cuGraphAddMemFreeNode(CUgraphNode* phGraphNode, CUgraph hGraph, const CUgraphNode* dependencies,
                               std::size_t numDependencies, CUdeviceptr dptr) {
    CUgraphNodeParams p = of_type(CU_GRAPH_NODE_TYPE_MEM_FREE);
    p.free.dptr = dptr;
    return add_node(phGraphNode, hGraph, dependencies, numDependencies, p);
}

CUresult cuGraphAddBatchMemOpNode(CUgraphNode* phGraphNode, CUgraph hGraph, const CUgraphNode* dependencies,
                                  std::size_t numDependencies, const CUDA_BATCH_MEM_OP_NODE_PARAMS* nodeParams) {
    return nodeParams == nullptr
               ? CUDA_ERROR_INVALID_VALUE
               : add_node(phGraphNode, hGraph, dependencies, numDependencies, operations_node(*nodeParams));
}

CUresult cuGraphAddNode(CUgraphNode* phGraphNode, CUgraph hGraph, const CUgraphNode* dependencies,
                        std::size_t numDependencies, CUgraphNodeParams* nodeParams) {
    return entry::cuGraphAddNode_v2(phGraphNode, hGraph, dependencies, nullptr, numDependencies, nodeParams);
}

CUresult cuGraphAddNode_v2(CUgraphNode* phGraphNode, CUgraph hGraph, const CUgraphNode* dependencies,
                           const CUgraphEdgeData* dependencyData, std::size_t numDependencies,
                           CUgraphNodeParams* nodeParams) {
    return nodeParams == nullptr
               ? CUDA_ERROR_INVALID_VALUE
               : add_node(phGraphNode, hGraph, dependencies, dependencyData, numDependencies, *nodeParams);
}

// ---- changing

CUresult cuGraphNodeSetParams(CUgraphNode hNode, CUgraphNodeParams* nodeParams) {
    return nodeParams == nullptr ? CUDA_ERROR_INVALID_VALUE : set_node(nullptr, hNode, *nodeParams);
}
CUresult cuGraphExecNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode, CUgraphNodeParams* nodeParams) {
    return nodeParams == nullptr ? CUDA_ERROR_INVALID_VALUE : set_node(hGraphExec, hNode, *nodeParams);
}

CUresult cuGraphKernelNodeSetParams(CUgraphNode hNode, const CUDA_KERNEL_NODE_PARAMS_v1* nodeParams) {
    return nodeParams == nullptr ? CUDA_ERROR_INVALID_VALUE : set_node(nullptr, hNode, kernel_node(*nodeParams));
}
CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode hNode, const CUDA_KERNEL_NODE_PARAMS_v2* nodeParams) {
    return nodeParams == nullptr ? CUDA_ERROR_INVALID_VALUE : set_node(nullptr, hNode, kernel_node(*nodeParams));
}
CUresult cuGraphExecKernelNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                        const CUDA_KERNEL_NODE_PARAMS_v1* nodeParams) {
    return nodeParams == nullptr ? CUDA_ERROR_INVALID_VALUE : set_node(hGraphExec, hNode, kernel_node(*nodeParams));
}
CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec hGraphExec, CUgraphNode hNode,
                                           const CUDA_KERNEL_NODE_PARAMS_v2* nodeParams) {
    return nodeParams == nullptr ? CUDA_ERROR_INVALID_VALUE : set_node(hGraphExec, hNode, kernel_node(*nodeParams));
}

CUresult cuGraphMemcpyNodeSetParams(CUgraphNode hNode, const CUDA_MEMCPY3D* nodeParams) {
    return nodeParams == nullptr ? CUDA_ERROR_INVALID_VALUE : set_node(nullptr, hNode, copy_node(*nodeParams, nullptr));
}
CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode, const CUDA_MEMCPY3D* copyParams,
                                        CUcontext ctx) {
    return copyParams == nullptr ? CUDA_ERROR_INVALID_VALUE : set_node(hGraphExec, hNode, copy_node(*copyParams, ctx));
}

CUresult cuGraphMemsetNodeSetParams(CUgraphNode hNode, const CUDA_MEMSET_NODE_PARAMS* nodeParams) {
    return nodeParams == nullptr ? CUDA_ERROR_INVALID_VALUE
                                 : set_node(nullptr, hNode, memset_node(*nodeParams, nullptr));
}
CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                        const CUDA_MEMSET_NODE_PARAMS* memsetParams, CUcontext ctx) {
    return memsetParams == nullptr ? CUDA_ERROR_INVALID_VALUE
                                   : set_node(hGraphExec, hNode, memset_node(*memsetParams, ctx));
}

CUresult cuGraphHostNodeSetParams(CUgraphNode hNode, const CUDA_HOST_NODE_PARAMS* nodeParams) {
    return nodeParams == nullptr ? CUDA_ERROR_INVALID_VALUE : set_node(nullptr, hNode, host_node(*nodeParams));
}
CUresult cuGraphExecHostNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                      const CUDA_HOST_NODE_PARAMS* nodeParams) {
    return nodeParams == nullptr ? CUDA_ERROR_INVALID_VALUE : set_node(hGraphExec, hNode, host_node(*nodeParams));
}

CUresult cuGraphEventRecordNodeSetEvent(CUgraphNode hNode, CUevent event) {
    return set_node(nullptr, hNode, event_node(CU_GRAPH_NODE_TYPE_EVENT_RECORD, event));
}
CUresult cuGraphEventWaitNodeSetEvent(CUgraphNode hNode, CUevent event) {
    return set_node(nullptr, hNode, event_node(CU_GRAPH_NODE_TYPE_WAIT_EVENT, event));
}
CUresult cuGraphExecEventRecordNodeSetEvent(CUgraphExec hGraphExec, CUgraphNode hNode, CUevent event) {
    return set_node(hGraphExec, hNode, event_node(CU_GRAPH_NODE_TYPE_EVENT_RECORD, event));
}
CUresult cuGraphExecEventWaitNodeSetEvent(CUgraphExec hGraphExec, CUgraphNode hNode, CUevent event) {
    return set_node(hGraphExec, hNode, event_node(CU_GRAPH_NODE_TYPE_WAIT_EVENT, event));
}
CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode, CUgraph childGraph) {
    return set_node(hGraphExec, hNode, child_node(childGraph));
}
CUresult cuGraphBatchMemOpNodeSetParams(CUgraphNode hNode, const CUDA_BATCH_MEM_OP_NODE_PARAMS* nodeParams) {
    return nodeParams == nullptr ? CUDA_ERROR_INVALID_VALUE : set_node(nullptr, hNode, operations_node(*nodeParams));
}
CUresult cuGraphExecBatchMemOpNodeSetParams(CUgraphExec hGraphExec, CUgraphNode hNode,
                                            const CUDA_BATCH_MEM_OP_NODE_PARAMS* nodeParams) {
    return nodeParams == nullptr ? CUDA_ERROR_INVALID_VALUE : set_node(hGraphExec, hNode, operations_node(*nodeParams));
}

CUresult cuGraphNodeSetEnabled(CUgraphExec hGraphExec, CUgraphNode hNode, unsigned isEnabled) {
    CUresult result = CUDA_SUCCESS;
    Session* const s = session(result);
    if (s == nullptr) {
        return result;
    }
    const std::optional<Graphs::Node> known = s->graphs.find_node(hNode);
    const WaitForReplies ask_the_driver(!known || known->type != CU_GRAPH_NODE_TYPE_KERNEL ||
                                        !s->graphs.holds(hGraphExec, *known));
    this_session().wait_for_changes_of(hGraphExec);
    return remote<calls::cuGraphNodeSetEnabled>(hGraphExec, hNode, isEnabled);
}

// The client does not know what a node's attributes forbid, so it forgets the node.
CUresult cuGraphKernelNodeSetAttribute(CUgraphNode hNode, CUkernelNodeAttrID attr, const CUkernelNodeAttrValue* value) {
    const CUresult result = remote<calls::cuGraphKernelNodeSetAttribute>(hNode, attr, value);
    if (result == CUDA_SUCCESS) {
        this_session().graphs.forget_node(hNode);
    }
    return result;
}

CUresult cuGraphKernelNodeCopyAttributes(CUgraphNode dst, CUgraphNode src) {
    const CUresult result = remote<calls::cuGraphKernelNodeCopyAttributes>(dst, src);
    if (result == CUDA_SUCCESS) {
        this_session().graphs.forget_node(dst);
    }
    return result;
}

CUresult cuGraphDestroyNode(CUgraphNode hNode) {
    const CUresult result = remote<calls::cuGraphDestroyNode>(hNode);
    if (result == CUDA_SUCCESS) {
        this_session().graphs.forget_node(hNode);
        this_session().node_storages.remove(hNode);
        UserObjects::Destructors due;
        this_session().user_objects.destroy(hNode, due);
        run(due);
    }
    return result;
}

}  // namespace entry
}  // namespace gpupool::client
