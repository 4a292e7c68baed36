#include "server/worker/graphs/graph_exec.h"

#include <algorithm>

#include "protocol/codec/handles.h"

namespace gpupool::worker {

GraphExec::~GraphExec() {
    if (executable_ != nullptr) {
        driver::call(api_.cuGraphExecDestroy, executable_);
    }
    if (clone_ != nullptr) {
        driver::call(api_.cuGraphDestroy, clone_);
    }
}

CUresult GraphExec::shape_with_bodies(CUgraph graph, const ExpansionParts& parts, GraphShape& shape) const {
    CUresult result = shape_of(api_, graph, kMaxGraphNodesAtAll, shape);
    for (std::size_t i = 0; i < parts.bodies.size() && result == CUDA_SUCCESS; ++i) {
        GraphShape body;
        result = shape_of(api_, parts.bodies[i], kMaxGraphNodesAtAll - shape.nodes, body);
        shape.nodes += body.nodes;
        shape.needs_client = shape.needs_client || body.needs_client;
    }
    return result;
}

CUresult GraphExec::expand(CUgraph graph, ExpansionParts& parts, Expansion& expansion, CUgraph& clone,
                           const ClientSteps& steps, GraphShape& shape) const {
    CUresult result = shape_with_bodies(graph, parts, shape);
    if (result != CUDA_SUCCESS || !shape.needs_client) {
        return result;
    }
    result = parts.in_place(shape.has_memory) ? expansion.expand_in_place(graph, parts)
                                              : expansion.expand_clone(graph, clone);
    // A function's step takes the place of its node; a copy's steps are nodes of their own.
    shape.nodes +=
        static_cast<std::uint32_t>(std::count_if(steps.list.begin(), steps.list.end(), [&](const auto& step) {
            return clone == nullptr || step->kind != ClientStep::Kind::function;
        }));
    return result;
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

CUresult GraphExec::instantiate(CUgraph graph, ExpansionParts& parts, std::uint64_t flags, CUgraphNode& error_node,
                                int& outcome) {
    GraphShape shape;
    Expansion expansion(api_, pinned_, *steps_);
    CUresult result = expand(graph, parts, expansion, clone_, *steps_, shape);
    outcome = CUDA_GRAPH_INSTANTIATE_ERROR;
    if (result == CUDA_SUCCESS) {
        cost_ = std::max(1u, shape.nodes);
        memory.needs = std::move(shape.memory);
        memory.frees_all = shape.unfreed <= 0;
        CUDA_GRAPH_INSTANTIATE_PARAMS parameters{};
        parameters.flags = flags;
        result = driver::call(api_.cuGraphInstantiateWithParams, &executable_, clone_ != nullptr ? clone_ : graph,
                              &parameters);
        error_node = original_of(graph, clone_, parameters.hErrNode_out);
        outcome = static_cast<int>(parameters.result_out);
    }
    expansion.restore(parts);
    return result;
}

CUresult GraphExec::update(CUgraph graph, ExpansionParts& parts, CUgraphExecUpdateResultInfo& information) {
    auto next = std::make_shared<ClientSteps>();
    CUgraph clone = nullptr;
    GraphShape shape;
    Expansion expansion(api_, pinned_, *next);
    CUresult result = expand(graph, parts, expansion, clone, *next, shape);
    if (result == CUDA_SUCCESS) {
        result = driver::call(api_.cuGraphExecUpdate_v2, executable_, clone != nullptr ? clone : graph, &information);
        information.errorNode = original_of(graph, clone, information.errorNode);
        information.errorFromNode = original_of(graph, clone, information.errorFromNode);
    } else {
        information.result = CU_GRAPH_EXEC_UPDATE_ERROR;
    }
    expansion.restore(parts);
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
        if (const CUresult result = stage(pinned_, copy, step, changed.back().second); result != CUDA_SUCCESS) {
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
