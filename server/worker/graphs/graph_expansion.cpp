#include "server/worker/graphs/graph_expansion.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "protocol/codec/handles.h"
#include "server/worker/graphs/graph_shape.h"
#include "server/worker/transfers/copy_pieces.h"

namespace gpupool::worker {
namespace {

constexpr std::size_t kWordsBytes = 128;  // request and done, a cache line each

struct Nodes {
    std::vector<CUgraphNode> nodes;
    std::vector<CUgraphEdgeData> edges;
};

// Calls `ask(nodes, edges, count)` twice, the first time for the count.
template <class Ask>
CUresult collect(Nodes& out, Ask ask) {
    std::size_t count = 0;
    CUresult result = ask(static_cast<CUgraphNode*>(nullptr), static_cast<CUgraphEdgeData*>(nullptr), &count);
    out.nodes.resize(count);
    out.edges.resize(count);
    if (result == CUDA_SUCCESS && count != 0) {
        result = ask(out.nodes.data(), out.edges.data(), &count);
    }
    return result;
}

CUresult dependencies_of(const driver::Api& api, CUgraphNode node, Nodes& out) {
    return collect(out, [&](CUgraphNode* nodes, CUgraphEdgeData* edges, std::size_t* count) {
        return driver::call(api.cuGraphNodeGetDependencies_v2, node, nodes, edges, count);
    });
}

CUresult dependents_of(const driver::Api& api, CUgraphNode node, Nodes& out) {
    return collect(out, [&](CUgraphNode* nodes, CUgraphEdgeData* edges, std::size_t* count) {
        return driver::call(api.cuGraphNodeGetDependentNodes_v2, node, nodes, edges, count);
    });
}

// These two make the edges to or from `node` lead to or from `other` instead.
CUresult move_dependencies(const driver::Api& api, CUgraph graph, CUgraphNode node, CUgraphNode other) {
    Nodes before;
    CUresult result = dependencies_of(api, node, before);
    for (std::size_t i = 0; i < before.nodes.size() && result == CUDA_SUCCESS; ++i) {
        result = driver::call(api.cuGraphRemoveDependencies_v2, graph, &before.nodes[i], &node, &before.edges[i],
                              std::size_t{1});
        if (result == CUDA_SUCCESS) {
            // Drop the edge's data about kernels: a memory operation waits for all that is before it.
            result = driver::call(api.cuGraphAddDependencies_v2, graph, &before.nodes[i], &other,
                                  static_cast<const CUgraphEdgeData*>(nullptr), std::size_t{1});
        }
    }
    return result;
}

CUresult move_dependents(const driver::Api& api, CUgraph graph, CUgraphNode node, CUgraphNode other) {
    Nodes after;
    CUresult result = dependents_of(api, node, after);
    for (std::size_t i = 0; i < after.nodes.size() && result == CUDA_SUCCESS; ++i) {
        result = driver::call(api.cuGraphRemoveDependencies_v2, graph, &node, &after.nodes[i], &after.edges[i],
                              std::size_t{1});
        if (result == CUDA_SUCCESS) {
            result = driver::call(api.cuGraphAddDependencies_v2, graph, &other, &after.nodes[i],
                                  static_cast<const CUgraphEdgeData*>(nullptr), std::size_t{1});
        }
    }
    return result;
}

codec::GraphCopyNotice rows_of(const CUDA_MEMCPY3D& copy, bool from_client) {
    codec::GraphCopyNotice rows{};
    rows.memory = host_memory_number(codec::to_wire(from_client ? copy.srcHost : copy.dstHost));
    rows.x_bytes = from_client ? copy.srcXInBytes : copy.dstXInBytes;
    rows.y = from_client ? copy.srcY : copy.dstY;
    rows.z = from_client ? copy.srcZ : copy.dstZ;
    rows.pitch_bytes = from_client ? copy.srcPitch : copy.dstPitch;
    rows.height = from_client ? copy.srcHeight : copy.dstHeight;
    if (rows.pitch_bytes == 0) {
        rows.pitch_bytes = rows.x_bytes + copy.WidthInBytes;
    }
    if (rows.height == 0) {
        rows.height = rows.y + copy.Height;
    }
    rows.width_bytes = copy.WidthInBytes;
    rows.rows = copy.Height;
    rows.slices = copy.Depth;
    return rows;
}

// The memory operations of a client step: write that it has begun, wait until it is done, reset for the next launch.
struct StepOperations {
    CUstreamBatchMemOpParams list[3];
    CUDA_BATCH_MEM_OP_NODE_PARAMS parameters{};

    StepOperations(const ClientStep& step, CUcontext context) {
        std::memset(static_cast<void*>(list), 0, sizeof list);
        list[0].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
        list[0].writeValue.address = step.device_request;
        list[0].writeValue.value = 1;
        list[1].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
        list[1].waitValue.address = step.device_done;
        list[1].waitValue.value = 1;
        list[1].waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
        list[2].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
        list[2].writeValue.address = step.device_done;
        list[2].writeValue.value = 0;
        parameters.ctx = context;
        parameters.count = 3;
        parameters.paramArray = list;
    }
    StepOperations(const StepOperations&) = delete;
    StepOperations& operator=(const StepOperations&) = delete;
};

CUcontext current_context(const driver::Api& api) {
    CUcontext context = nullptr;
    driver::call(api.cuCtxGetCurrent, &context);
    return context;
}

}  // namespace

CUresult stage(PinnedMemory& pinned, CUDA_MEMCPY3D& copy, const ClientStep& step,
               std::shared_ptr<const StepWork>& work) {
    const bool from_client = step.kind == ClientStep::Kind::from_client;
    auto made = std::make_shared<StepWork>();
    if (!packed_bytes(copy, made->bytes) ||
        !is_host_memory_name(codec::to_wire(from_client ? copy.srcHost : copy.dstHost))) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (step.work != nullptr && step.work->staging->bytes() >= made->bytes) {
        made->staging = step.work->staging;
    } else if (const CUresult result = pinned.allocate(made->bytes, made->staging); result != CUDA_SUCCESS) {
        return result;
    }
    made->rows = rows_of(copy, from_client);
    const Piece all{0, made->bytes, 0, 0, 0, copy.WidthInBytes, copy.Height, copy.Depth};
    std::byte* const staging = made->staging->data();
    copy = from_client ? part_from_host(copy, all, staging) : part_to_host(copy, all, staging);
    work = std::move(made);
    return CUDA_SUCCESS;
}

CUresult Expansion::add_step(ClientStep::Kind kind, CUgraphNode named, ClientStep*& step) {
    PinnedMemory::BlockPtr words;
    CUresult result = pinned_.allocate(kWordsBytes, words);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    CUdeviceptr device_words = 0;
    result = driver::call(api_.cuMemHostGetDevicePointer_v2, &device_words, static_cast<void*>(words->data()), 0u);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    steps_.list.push_back(std::make_unique<ClientStep>());
    step = steps_.list.back().get();
    step->kind = kind;
    step->words = words;
    step->request = reinterpret_cast<std::uint32_t*>(words->data());
    step->done = step->request + kWordsBytes / 2 / sizeof(std::uint32_t);
    step->device_request = device_words;
    step->device_done = device_words + kWordsBytes / 2;
    if (named != nullptr) {
        steps_.by_node.emplace(named, step);
    }
    return CUDA_SUCCESS;
}

CUresult Expansion::replace_function(CUgraph clone, CUgraphNode node, CUgraphNode named) {
    CUDA_HOST_NODE_PARAMS function{};
    CUresult result = driver::call(api_.cuGraphHostNodeGetParams, node, &function);
    ClientStep* step = nullptr;
    result = result == CUDA_SUCCESS ? add_step(ClientStep::Kind::function, named, step) : result;
    if (result != CUDA_SUCCESS) {
        return result;
    }
    auto work = std::make_shared<StepWork>();
    work->function = codec::to_wire(function.userData);
    step->work = std::move(work);
    const StepOperations operations(*step, current_context(api_));
    CUgraphNode stand_in = nullptr;
    result = driver::call(api_.cuGraphAddBatchMemOpNode, &stand_in, clone, static_cast<const CUgraphNode*>(nullptr),
                          std::size_t{0}, &operations.parameters);
    result = result == CUDA_SUCCESS ? move_dependencies(api_, clone, node, stand_in) : result;
    result = result == CUDA_SUCCESS ? move_dependents(api_, clone, node, stand_in) : result;
    return result == CUDA_SUCCESS ? driver::call(api_.cuGraphDestroyNode, node) : result;
}

CUresult Expansion::route_copy(CUgraph clone, CUgraphNode node, CUgraphNode named) {
    CUDA_MEMCPY3D copy{};
    CUresult result = driver::call(api_.cuGraphMemcpyNodeGetParams, node, &copy);
    const bool from_client = is_host(copy.srcMemoryType), to_client = is_host(copy.dstMemoryType);
    if (result != CUDA_SUCCESS || (!from_client && !to_client)) {
        return result;
    }
    const CUcontext context = current_context(api_);
    const auto add = [&](ClientStep::Kind kind, CUgraphNode& added) {
        ClientStep* step = nullptr;
        CUresult r = add_step(kind, named, step);
        r = r == CUDA_SUCCESS ? stage(pinned_, copy, *step, step->work) : r;
        if (r == CUDA_SUCCESS) {
            const StepOperations operations(*step, context);
            r = driver::call(api_.cuGraphAddBatchMemOpNode, &added, clone, static_cast<const CUgraphNode*>(nullptr),
                             std::size_t{0}, &operations.parameters);
        }
        return r;
    };
    const auto connect = [&](const CUgraphNode& from, const CUgraphNode& to) {
        return driver::call(api_.cuGraphAddDependencies_v2, clone, &from, &to,
                            static_cast<const CUgraphEdgeData*>(nullptr), std::size_t{1});
    };
    CUgraphNode step = nullptr;
    if (from_client) {
        result = add(ClientStep::Kind::from_client, step);
        result = result == CUDA_SUCCESS ? move_dependencies(api_, clone, node, step) : result;
        result = result == CUDA_SUCCESS ? connect(step, node) : result;
    }
    if (result == CUDA_SUCCESS && to_client) {
        result = add(ClientStep::Kind::to_client, step);
        result = result == CUDA_SUCCESS ? move_dependents(api_, clone, node, step) : result;
        result = result == CUDA_SUCCESS ? connect(node, step) : result;
    }
    return result == CUDA_SUCCESS
               ? driver::call(api_.cuGraphMemcpyNodeSetParams, node, static_cast<const CUDA_MEMCPY3D*>(&copy))
               : result;
}

// Recursion is no deeper than shape_of() permits.
CUresult Expansion::expand_nodes(CUgraph clone, CUgraph original) {
    std::vector<CUgraphNode> all;
    CUresult result = nodes_of(api_, original != nullptr ? original : clone, all);
    for (std::size_t i = 0; i < all.size() && result == CUDA_SUCCESS; ++i) {
        CUgraphNode node = all[i];
        CUgraphNode named = nullptr;
        if (original != nullptr) {
            named = node;
            result = driver::call(api_.cuGraphNodeFindInClone, &node, named, clone);
        }
        CUgraphNodeType type{};
        result = result == CUDA_SUCCESS ? driver::call(api_.cuGraphNodeGetType, node, &type) : result;
        if (result != CUDA_SUCCESS) {
            return result;
        }
        if (type == CU_GRAPH_NODE_TYPE_HOST) {
            result = replace_function(clone, node, named);
        } else if (type == CU_GRAPH_NODE_TYPE_MEMCPY) {
            result = route_copy(clone, node, named);
        } else if (type == CU_GRAPH_NODE_TYPE_GRAPH) {
            CUgraph child = nullptr;
            result = driver::call(api_.cuGraphChildGraphNodeGetGraph, node, &child);
            result = result == CUDA_SUCCESS ? expand_nodes(child, nullptr) : result;
        }
    }
    return result;
}

CUresult Expansion::expand_clone(CUgraph graph, CUgraph& clone) {
    CUresult result = driver::call(api_.cuGraphClone, &clone, graph);
    result = result == CUDA_SUCCESS ? expand_nodes(clone, graph) : result;
    if (result != CUDA_SUCCESS && clone != nullptr) {
        driver::call(api_.cuGraphDestroy, clone);
        clone = nullptr;
    }
    return result;
}

// ---- in place

CUresult Expansion::expand_in_place(CUgraph graph, ExpansionParts& parts) {
    CUresult result = accompany_nodes({graph, false}, parts);
    for (std::size_t i = 0; i < parts.bodies.size() && result == CUDA_SUCCESS; ++i) {
        result = accompany_nodes({parts.bodies[i], true}, parts);
    }
    return result;
}

// Recursion is no deeper than shape_of() permits.
CUresult Expansion::accompany_nodes(const Place& place, ExpansionParts& parts) {
    std::vector<CUgraphNode> all;
    CUresult result = nodes_of(api_, place.graph, all);
    for (std::size_t i = 0; i < all.size() && result == CUDA_SUCCESS; ++i) {
        if (!parts.stand_ins.hides(all[i])) {
            result = accompany(place, all[i], parts);
        }
    }
    return result;
}

CUresult Expansion::accompany(const Place& place, CUgraphNode node, ExpansionParts& parts) {
    CUgraphNodeType type{};
    CUresult result = driver::call(api_.cuGraphNodeGetType, node, &type);
    if (result == CUDA_SUCCESS && type == CU_GRAPH_NODE_TYPE_HOST) {
        CUDA_HOST_NODE_PARAMS function{};
        ClientStep* step = nullptr;
        result = driver::call(api_.cuGraphHostNodeGetParams, node, &function);
        result = result == CUDA_SUCCESS ? add_step(ClientStep::Kind::function, node, step) : result;
        if (result != CUDA_SUCCESS) {
            return result;
        }
        auto work = std::make_shared<StepWork>();
        work->function = codec::to_wire(function.userData);
        step->work = std::move(work);
        step->any_number = place.in_body;
        return stand_in(place, node, Side::before, *step, parts);
    }
    if (result == CUDA_SUCCESS && type == CU_GRAPH_NODE_TYPE_MEMCPY) {
        return accompany_copy(place, node, parts);
    }
    if (result == CUDA_SUCCESS && type == CU_GRAPH_NODE_TYPE_GRAPH) {
        CUgraph child = nullptr;
        result = driver::call(api_.cuGraphChildGraphNodeGetGraph, node, &child);
        return result == CUDA_SUCCESS ? accompany_nodes({child, place.in_body}, parts) : result;
    }
    return result;
}

CUresult Expansion::accompany_copy(const Place& place, CUgraphNode node, ExpansionParts& parts) {
    CUDA_MEMCPY3D copy{};
    CUresult result = driver::call(api_.cuGraphMemcpyNodeGetParams, node, &copy);
    const CUDA_MEMCPY3D own = copy;
    const auto add = [&](ClientStep::Kind kind, Side side) {
        ClientStep* step = nullptr;
        CUresult r = add_step(kind, node, step);
        r = r == CUDA_SUCCESS ? stage(pinned_, copy, *step, step->work) : r;
        if (r == CUDA_SUCCESS) {
            step->any_number = place.in_body;
            r = stand_in(place, node, side, *step, parts);
        }
        return r;
    };
    const bool from_client = is_host(own.srcMemoryType), to_client = is_host(own.dstMemoryType);
    if (result != CUDA_SUCCESS || (!from_client && !to_client)) {
        return result;
    }
    result = from_client ? add(ClientStep::Kind::from_client, Side::before) : result;
    result = result == CUDA_SUCCESS && to_client ? add(ClientStep::Kind::to_client, Side::after) : result;
    if (result == CUDA_SUCCESS) {
        result = driver::call(api_.cuGraphMemcpyNodeSetParams, node, static_cast<const CUDA_MEMCPY3D*>(&copy));
    }
    if (result == CUDA_SUCCESS) {
        changed_.emplace_back(node, own);
    }
    return result;
}

// Makes the node of the step, or gives the node of an earlier instantiation this step's parameters. Side::before: it
// gets the dependencies of `node`, and `node` depends on it. Side::after: the reverse.
CUresult Expansion::stand_in(const Place& place, CUgraphNode node, Side side, const ClientStep& step,
                             ExpansionParts& parts) {
    StandIns::Pair& pair = parts.stand_ins.by_node[node];
    CUgraphNode& own = side == Side::before ? pair.before : pair.after;
    const bool before = side == Side::before;
    CUresult result = set_up(place, step, parts, own);
    Nodes there, wanted;
    result = result == CUDA_SUCCESS ? (before ? dependencies_of(api_, own, there) : dependents_of(api_, own, there))
                                    : result;
    result = result == CUDA_SUCCESS ? (before ? dependencies_of(api_, node, wanted) : dependents_of(api_, node, wanted))
                                    : result;
    const auto connect = [&](CUgraphNode from, CUgraphNode to) {
        return driver::call(api_.cuGraphAddDependencies_v2, place.graph, static_cast<const CUgraphNode*>(&from),
                            static_cast<const CUgraphNode*>(&to), static_cast<const CUgraphEdgeData*>(nullptr),
                            std::size_t{1});
    };
    const auto among = [](const Nodes& list, CUgraphNode one) {
        return std::find(list.nodes.begin(), list.nodes.end(), one) != list.nodes.end();
    };
    for (std::size_t i = 0; i < wanted.nodes.size() && result == CUDA_SUCCESS; ++i) {
        const CUgraphNode other = wanted.nodes[i];
        if (other != own && !among(there, other)) {
            result = before ? connect(other, own) : connect(own, other);
        }
    }
    if (result == CUDA_SUCCESS && !among(wanted, own)) {
        result = before ? connect(own, node) : connect(node, own);
    }
    return result;
}

CUresult Expansion::set_up(const Place& place, const ClientStep& step, ExpansionParts& parts, CUgraphNode& node) {
    const bool exists = node != nullptr;
    CUresult result = CUDA_SUCCESS;
    if (!place.in_body) {
        const StepOperations operations(step, current_context(api_));
        result = exists
                     ? driver::call(api_.cuGraphBatchMemOpNodeSetParams, node, &operations.parameters)
                     : driver::call(api_.cuGraphAddBatchMemOpNode, &node, place.graph,
                                    static_cast<const CUgraphNode*>(nullptr), std::size_t{0}, &operations.parameters);
    } else {
        CUdeviceptr request = step.device_request, done = step.device_done;
        void* arguments[] = {&request, &done};
        CUDA_KERNEL_NODE_PARAMS kernel{};
        kernel.gridDimX = kernel.gridDimY = kernel.gridDimZ = 1;
        kernel.blockDimX = kernel.blockDimY = kernel.blockDimZ = 1;
        kernel.kernelParams = arguments;
        result = parts.kernels->find(api_, parts.context, kernel.func);
        if (result == CUDA_SUCCESS) {
            result = exists ? driver::call(api_.cuGraphKernelNodeSetParams_v2, node,
                                           static_cast<const CUDA_KERNEL_NODE_PARAMS*>(&kernel))
                            : driver::call(api_.cuGraphAddKernelNode_v2, &node, place.graph,
                                           static_cast<const CUgraphNode*>(nullptr), std::size_t{0},
                                           static_cast<const CUDA_KERNEL_NODE_PARAMS*>(&kernel));
        }
    }
    if (result == CUDA_SUCCESS && !exists) {
        parts.stand_ins.hidden.insert(node);
    }
    return result;
}

void Expansion::restore(ExpansionParts& parts) {
    for (const auto& [node, own] : changed_) {
        driver::call(api_.cuGraphMemcpyNodeSetParams, node, &own);
    }
    changed_.clear();
    const auto remove = [&](CUgraphNode& node) {
        if (node != nullptr && driver::call(api_.cuGraphDestroyNode, node) == CUDA_SUCCESS) {
            parts.stand_ins.hidden.erase(node);
            node = nullptr;
        }
    };
    auto& by_node = parts.stand_ins.by_node;
    for (auto it = by_node.begin(); it != by_node.end();) {
        remove(it->second.before);
        remove(it->second.after);
        const bool none = it->second.before == nullptr && it->second.after == nullptr;
        it = none ? by_node.erase(it) : std::next(it);
    }
}

CUresult StepKernels::find(const driver::Api& api, std::uint64_t context, CUfunction& kernel) {
    // Writes that the step has begun, waits until it is done, and resets that for the next time.
    constexpr const char* kCode = R"(.version 6.0
.target sm_50
.address_size 64
.visible .entry gpupool_client_step(.param .u64 request, .param .u64 done)
{
    .reg .pred %waits;
    .reg .b32 %seen;
    .reg .b64 %request, %done;
    ld.param.u64 %request, [request];
    ld.param.u64 %done, [done];
    membar.sys;
    st.volatile.global.u32 [%request], 1;
again:
    ld.volatile.global.u32 %seen, [%done];
    setp.eq.u32 %waits, %seen, 0;
    @%waits bra again;
    membar.sys;
    st.volatile.global.u32 [%done], 0;
    membar.sys;
    ret;
}
)";
    const Lock lock(mutex_);
    const auto known = loaded_.find(context);
    if (known != loaded_.end()) {
        kernel = known->second;
        return CUDA_SUCCESS;
    }
    CUmodule module = nullptr;  // stays until its context ends
    CUresult result = driver::call(api.cuModuleLoadData, &module, static_cast<const void*>(kCode));
    result =
        result == CUDA_SUCCESS ? driver::call(api.cuModuleGetFunction, &kernel, module, "gpupool_client_step") : result;
    if (result == CUDA_SUCCESS) {
        loaded_[context] = kernel;
    }
    return result;
}

}  // namespace gpupool::worker
