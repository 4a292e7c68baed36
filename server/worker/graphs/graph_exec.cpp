#include "server/worker/graphs/graph_exec.h"

#include <algorithm>
#include <cstring>

#include "protocol/codec/handles.h"
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

GraphExec::~GraphExec() {
    if (executable_ != nullptr) {
        driver::call(api_.cuGraphExecDestroy, executable_);
    }
    if (clone_ != nullptr) {
        driver::call(api_.cuGraphDestroy, clone_);
    }
}

CUresult GraphExec::add_step(ClientStep::Kind kind, CUgraphNode named, ClientSteps& out, ClientStep*& step) const {
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
    out.list.push_back(std::make_unique<ClientStep>());
    step = out.list.back().get();
    step->kind = kind;
    step->words = words;
    step->request = reinterpret_cast<std::uint32_t*>(words->data());
    step->done = step->request + kWordsBytes / 2 / sizeof(std::uint32_t);
    step->device_request = device_words;
    step->device_done = device_words + kWordsBytes / 2;
    if (named != nullptr) {
        out.by_node.emplace(named, step);
    }
    return CUDA_SUCCESS;
}

// Replaces the client's side of `copy` by packed pinned memory: the step's own if that is large enough.
CUresult GraphExec::stage(CUDA_MEMCPY3D& copy, const ClientStep& step, std::shared_ptr<const StepWork>& work) const {
    const bool from_client = step.kind == ClientStep::Kind::from_client;
    auto made = std::make_shared<StepWork>();
    if (!packed_bytes(copy, made->bytes) ||
        !is_host_memory_name(codec::to_wire(from_client ? copy.srcHost : copy.dstHost))) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (step.work != nullptr && step.work->staging->bytes() >= made->bytes) {
        made->staging = step.work->staging;
    } else if (const CUresult result = pinned_.allocate(made->bytes, made->staging); result != CUDA_SUCCESS) {
        return result;
    }
    made->rows = rows_of(copy, from_client);
    const Piece all{0, made->bytes, 0, 0, 0, copy.WidthInBytes, copy.Height, copy.Depth};
    std::byte* const staging = made->staging->data();
    copy = from_client ? part_from_host(copy, all, staging) : part_to_host(copy, all, staging);
    work = std::move(made);
    return CUDA_SUCCESS;
}

CUresult GraphExec::replace_function(CUgraph clone, CUgraphNode node, CUgraphNode named, ClientSteps& out) const {
    CUDA_HOST_NODE_PARAMS function{};
    CUresult result = driver::call(api_.cuGraphHostNodeGetParams, node, &function);
    ClientStep* step = nullptr;
    result = result == CUDA_SUCCESS ? add_step(ClientStep::Kind::function, named, out, step) : result;
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

CUresult GraphExec::route_copy(CUgraph clone, CUgraphNode node, CUgraphNode named, ClientSteps& out) const {
    CUDA_MEMCPY3D copy{};
    CUresult result = driver::call(api_.cuGraphMemcpyNodeGetParams, node, &copy);
    const bool from_client = is_host(copy.srcMemoryType), to_client = is_host(copy.dstMemoryType);
    if (result != CUDA_SUCCESS || (!from_client && !to_client)) {
        return result;
    }
    const CUcontext context = current_context(api_);
    const auto add = [&](ClientStep::Kind kind, CUgraphNode& added) {
        ClientStep* step = nullptr;
        CUresult r = add_step(kind, named, out, step);
        r = r == CUDA_SUCCESS ? stage(copy, *step, step->work) : r;
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
CUresult GraphExec::expand_nodes(CUgraph clone, CUgraph original, ClientSteps& out) const {
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
            result = replace_function(clone, node, named, out);
        } else if (type == CU_GRAPH_NODE_TYPE_MEMCPY) {
            result = route_copy(clone, node, named, out);
        } else if (type == CU_GRAPH_NODE_TYPE_GRAPH) {
            CUgraph child = nullptr;
            result = driver::call(api_.cuGraphChildGraphNodeGetGraph, node, &child);
            result = result == CUDA_SUCCESS ? expand_nodes(child, nullptr, out) : result;
        }
    }
    return result;
}

CUresult GraphExec::expand(CUgraph graph, std::span<const CUgraph> bodies, CUgraph& clone, ClientSteps& out,
                           GraphShape& shape) const {
    CUresult result = shape_of(api_, graph, kMaxGraphNodesAtAll, shape);
    for (std::size_t i = 0; i < bodies.size() && result == CUDA_SUCCESS; ++i) {
        GraphShape body;
        result = shape_of(api_, bodies[i], kMaxGraphNodesAtAll - shape.nodes, body);
        if (result == CUDA_SUCCESS && body.needs_client) {
            return CUDA_ERROR_NOT_SUPPORTED;  // client steps need memory operations, which the driver forbids there
        }
        shape.nodes += body.nodes;
    }
    if (result != CUDA_SUCCESS || !shape.needs_client) {
        return result;
    }
    result = driver::call(api_.cuGraphClone, &clone, graph);
    result = result == CUDA_SUCCESS ? expand_nodes(clone, graph, out) : result;
    if (result != CUDA_SUCCESS) {
        if (clone != nullptr) {
            driver::call(api_.cuGraphDestroy, clone);
        }
        clone = nullptr;
        return result;
    }
    // A function's step takes the place of its node; a copy's steps are nodes of their own.
    shape.nodes += static_cast<std::uint32_t>(std::count_if(
        out.list.begin(), out.list.end(), [](const auto& step) { return step->kind != ClientStep::Kind::function; }));
    return CUDA_SUCCESS;
}

// The node of `graph` whose clone is `node`; null if there is none.
CUgraphNode GraphExec::original_of(CUgraph graph, CUgraph clone, CUgraphNode node) const {
    if (clone == nullptr || node == nullptr) {
        return node;
    }
    std::vector<CUgraphNode> all;
    if (nodes_of(api_, graph, all) != CUDA_SUCCESS) {
        return nullptr;
    }
    for (const CUgraphNode candidate : all) {
        CUgraphNode cloned = nullptr;
        if (driver::call(api_.cuGraphNodeFindInClone, &cloned, candidate, clone) == CUDA_SUCCESS && cloned == node) {
            return candidate;
        }
    }
    return nullptr;
}

CUresult GraphExec::instantiate(CUgraph graph, std::span<const CUgraph> bodies, std::uint64_t flags,
                                CUgraphNode& error_node, int& outcome) {
    GraphShape shape;
    CUresult result = expand(graph, bodies, clone_, *steps_, shape);
    if (result != CUDA_SUCCESS) {
        outcome = CUDA_GRAPH_INSTANTIATE_ERROR;
        return result;
    }
    cost_ = std::max(1u, shape.nodes);
    memory.needs = std::move(shape.memory);
    memory.frees_all = shape.unfreed <= 0;
    CUDA_GRAPH_INSTANTIATE_PARAMS parameters{};
    parameters.flags = flags;
    result =
        driver::call(api_.cuGraphInstantiateWithParams, &executable_, clone_ != nullptr ? clone_ : graph, &parameters);
    error_node = original_of(graph, clone_, parameters.hErrNode_out);
    outcome = static_cast<int>(parameters.result_out);
    return result;
}

CUresult GraphExec::update(CUgraph graph, std::span<const CUgraph> bodies, CUgraphExecUpdateResultInfo& information) {
    auto next = std::make_shared<ClientSteps>();
    CUgraph clone = nullptr;
    GraphShape shape;
    CUresult result = expand(graph, bodies, clone, *next, shape);
    if (result != CUDA_SUCCESS) {
        information.result = CU_GRAPH_EXEC_UPDATE_ERROR;
        return result;
    }
    result = driver::call(api_.cuGraphExecUpdate_v2, executable_, clone != nullptr ? clone : graph, &information);
    information.errorNode = original_of(graph, clone, information.errorNode);
    information.errorFromNode = original_of(graph, clone, information.errorFromNode);
    if (clone != nullptr) {
        driver::call(api_.cuGraphDestroy, clone);
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    next->by_node.clear();
    // Nodes of the first graph keep naming the same steps, if the updated graph has the same kinds of steps.
    if (std::equal(steps_->list.begin(), steps_->list.end(), next->list.begin(), next->list.end(),
                   [](const auto& a, const auto& b) { return a->kind == b->kind; })) {
        for (const auto& [node, step] : steps_->by_node) {
            const auto place = std::find_if(steps_->list.begin(), steps_->list.end(),
                                            [step = step](const auto& one) { return one.get() == step; });
            ClientStep* const same = next->list[static_cast<std::size_t>(place - steps_->list.begin())].get();
            same->enabled = step->enabled;
            next->by_node.emplace(node, same);
        }
    }
    steps_ = std::move(next);  // launches under way keep the former steps
    return CUDA_SUCCESS;
}

CUresult GraphExec::own_node(CUgraphNode node, CUgraphNode& own) const {
    own = node;
    return clone_ == nullptr ? CUDA_SUCCESS : driver::call(api_.cuGraphNodeFindInClone, &own, node, clone_);
}

CUresult GraphExec::set_driver(CUgraphNode node, CUgraphNodeParams& parameters) const {
    CUgraphNode own = nullptr;
    const CUresult result = own_node(node, own);
    return result != CUDA_SUCCESS ? result : driver::call(api_.cuGraphExecNodeSetParams, executable_, own, &parameters);
}

CUresult GraphExec::set_copy(CUgraphNode node, CUgraphNodeParams& parameters) {
    CUDA_MEMCPY3D& copy = parameters.memcpy.copyParams;
    const bool from_client = is_host(copy.srcMemoryType), to_client = is_host(copy.dstMemoryType);
    const auto steps = static_cast<std::ptrdiff_t>(from_client) + static_cast<std::ptrdiff_t>(to_client);
    const auto [first, last] = steps_->by_node.equal_range(node);
    if (std::distance(first, last) != steps) {
        return CUDA_ERROR_INVALID_VALUE;  // its sides differ from those that it was instantiated with
    }
    std::vector<std::pair<ClientStep*, std::shared_ptr<const StepWork>>> changed;
    for (auto it = first; it != last; ++it) {
        const ClientStep& step = *it->second;
        if ((step.kind == ClientStep::Kind::from_client && !from_client) ||
            (step.kind == ClientStep::Kind::to_client && !to_client) || step.kind == ClientStep::Kind::function) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        changed.emplace_back(it->second, nullptr);
        if (const CUresult result = stage(copy, step, changed.back().second); result != CUDA_SUCCESS) {
            return result;
        }
    }
    const CUresult result = set_driver(node, parameters);
    if (result == CUDA_SUCCESS) {
        for (auto& [step, work] : changed) {
            step->work = std::move(work);
        }
    }
    return result;
}

CUresult GraphExec::set(CUgraphNode node, CUgraphNodeParams& parameters) {
    if (parameters.type == CU_GRAPH_NODE_TYPE_HOST) {
        const auto step = steps_->by_node.find(node);
        if (step == steps_->by_node.end() || step->second->kind != ClientStep::Kind::function) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        auto work = std::make_shared<StepWork>();
        work->function = codec::to_wire(parameters.host.userData);
        step->second->work = std::move(work);
        return CUDA_SUCCESS;
    }
    if (parameters.type == CU_GRAPH_NODE_TYPE_MEMCPY) {
        return set_copy(node, parameters);
    }
    if (parameters.type == CU_GRAPH_NODE_TYPE_GRAPH) {
        GraphShape shape;
        const CUresult result = shape_of(api_, parameters.graph.graph, kMaxGraphNodesAtAll, shape);
        if (result != CUDA_SUCCESS || shape.needs_client) {
            return result != CUDA_SUCCESS ? result : CUDA_ERROR_NOT_SUPPORTED;
        }
    }
    return set_driver(node, parameters);
}

CUresult GraphExec::enable(CUgraphNode node, unsigned enabled) {
    CUgraphNode own = nullptr;
    CUresult result = own_node(node, own);
    result = result == CUDA_SUCCESS ? driver::call(api_.cuGraphNodeSetEnabled, executable_, own, enabled) : result;
    if (result == CUDA_SUCCESS) {
        const auto [first, last] = steps_->by_node.equal_range(node);
        for (auto it = first; it != last; ++it) {
            it->second->enabled = enabled != 0;
        }
    }
    return result;
}

}  // namespace gpupool::worker
