#include "server/softgpu/graph/executable.h"

#include <algorithm>
#include <unordered_map>

#include "server/softgpu/api/copy.h"
#include "server/softgpu/graph/plan_run.h"

namespace gpupool::softgpu {
namespace {

constexpr unsigned long long kKnownFlags =
    CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD |
    CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;

// First and last step of a node; the same step for anything but a child graph.
struct Span {
    std::uint32_t first = 0, last = 0;
};

std::uint32_t add_step(Plan& plan, PayloadPtr payload) {
    plan.steps.push_back({std::move(payload), nullptr, {}, 0});
    return static_cast<std::uint32_t>(plan.steps.size() - 1);
}

void connect(Plan& plan, std::uint32_t from, std::uint32_t to) {
    plan.steps[from].dependents.push_back(to);
    ++plan.steps[to].dependency_count;
}

Span inline_graph(Plan& plan, const Graph& graph);

void add_conditional(Plan& plan, std::uint32_t step, const ConditionalPayload& payload) {
    auto made = std::make_shared<Plan::Conditional>();
    made->condition = payload.condition;
    made->type = payload.type;
    plan.conditions.push_back(payload.condition);
    for (const GraphPtr& body : payload.bodies) {
        auto inner = std::make_shared<Plan>();
        inline_graph(*inner, *body);
        plan.conditions.insert(plan.conditions.end(), inner->conditions.begin(), inner->conditions.end());
        made->bodies.push_back(std::move(inner));
    }
    plan.steps[step].conditional = std::move(made);
}

// Inlines child graphs, recursively. The depth is bounded by the calls that the program made, one per level.
Span inline_graph(Plan& plan, const Graph& graph) {
    const Span whole{add_step(plan, nullptr), add_step(plan, nullptr)};
    connect(plan, whole.first, whole.last);
    std::unordered_map<const Node*, Span> spans;
    for (const auto& node : graph.nodes) {
        if (const auto* child = std::get_if<ChildPayload>(node->payload.get())) {
            spans[node.get()] = inline_graph(plan, *child->graph);
            continue;
        }
        const auto* conditional = std::get_if<ConditionalPayload>(node->payload.get());
        const std::uint32_t step = add_step(plan, node->enabled && conditional == nullptr ? node->payload : nullptr);
        if (conditional != nullptr) {
            add_conditional(plan, step, *conditional);
        }
        spans[node.get()] = {step, step};
    }
    for (const auto& node : graph.nodes) {
        const Span& mine = spans[node.get()];
        if (node->dependencies.empty()) {
            connect(plan, whole.first, mine.first);
        }
        if (node->dependents.empty()) {
            connect(plan, mine.last, whole.last);
        }
        for (const Node* from : node->dependencies) {
            connect(plan, spans[from].last, mine.first);
        }
    }
    return whole;
}

bool sorts(const Graph& graph) {
    return graph.sorted().has_value() && std::all_of(graph.nodes.begin(), graph.nodes.end(), [](const NodePtr& node) {
               const auto inner = graphs_in(*node->payload);
               return std::all_of(inner.begin(), inner.end(), [](const GraphPtr& one) { return sorts(*one); });
           });
}

template <class F>
void for_each_memory(const Graph& graph, F what) {
    for (const auto& node : graph.nodes) {
        for (const GraphPtr& inner : graphs_in(*node->payload)) {
            for_each_memory(*inner, what);
        }
        if (const auto* allocation = std::get_if<AllocationPayload>(node->payload.get())) {
            what(*allocation->memory, true);
        }
        if (const auto* free = std::get_if<FreePayload>(node->payload.get())) {
            what(*free->memory, false);
        }
    }
}

template <class F>
void for_each_condition(const Graph& graph, F what) {
    for (const auto& node : graph.nodes) {
        for (const GraphPtr& inner : graphs_in(*node->payload)) {
            for_each_condition(*inner, what);
        }
        if (const auto* conditional = std::get_if<ConditionalPayload>(node->payload.get())) {
            what(*conditional->condition);
        }
    }
}

bool has_unused_condition(const Graph& graph) {
    return std::any_of(graph.conditions->begin(), graph.conditions->end(),
                       [](const auto& condition) { return !condition->used(); });
}

// The first node that a conditional node's graph may not have; null if there is none.
const Node* misplaced_node(const Graph& graph, bool in_body) {
    for (const auto& node : graph.nodes) {
        const CUgraphNodeType type = type_of(*node->payload);
        const bool fits = type == CU_GRAPH_NODE_TYPE_KERNEL || type == CU_GRAPH_NODE_TYPE_MEMCPY ||
                          type == CU_GRAPH_NODE_TYPE_MEMSET || type == CU_GRAPH_NODE_TYPE_EMPTY ||
                          type == CU_GRAPH_NODE_TYPE_GRAPH || type == CU_GRAPH_NODE_TYPE_CONDITIONAL;
        if (in_body && !fits) {
            return node.get();
        }
        for (const GraphPtr& inner : graphs_in(*node->payload)) {
            if (const Node* found = misplaced_node(*inner, in_body || inner->is_body)) {
                return found;
            }
        }
    }
    return nullptr;
}

Node* find_in(const Graph& graph, unsigned long long origin) {
    for (const auto& node : graph.nodes) {
        if (node->origin == origin) {
            return node.get();
        }
        for (const GraphPtr& inner : graphs_in(*node->payload)) {
            if (Node* found = find_in(*inner, origin)) {
                return found;
            }
        }
    }
    return nullptr;
}

bool is_flat(const CUDA_MEMCPY3D& copy) {
    return copy.Height <= 1 && copy.Depth <= 1;
}

bool same_copy(const CUDA_MEMCPY3D& a, const CUDA_MEMCPY3D& b) {
    Copy from, to;
    if (place_copy(a, from) != CUDA_SUCCESS || place_copy(b, to) != CUDA_SUCCESS) {
        return false;
    }
    check_copy(from), check_copy(to);  // resolves unified sides
    return from.from == to.from && from.to == to.to && (is_flat(a) == is_flat(b));
}

// Pairs the nodes of two graphs in the order of their creation.
struct Pairing {
    CUgraphExecUpdateResultInfo info{CU_GRAPH_EXEC_UPDATE_SUCCESS, nullptr, nullptr};
    std::vector<std::pair<Node*, const Node*>> pairs;

    bool fail(CUgraphExecUpdateResult why, const Node* node) {
        info.result = why;
        info.errorNode = reinterpret_cast<CUgraphNode>(const_cast<Node*>(node));
        return false;
    }

    bool pair(const Graph& to, const Graph& from) {
        // A different number of nodes is no single node's fault.
        if (to.nodes.size() != from.nodes.size()) {
            return fail(CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, nullptr);
        }
        std::unordered_map<const Node*, const Node*> image;
        for (std::size_t i = 0; i < from.nodes.size(); ++i) {
            image[from.nodes[i].get()] = to.nodes[i].get();
        }
        for (std::size_t i = 0; i < from.nodes.size(); ++i) {
            const Node& node = *from.nodes[i];
            Node& mine = *to.nodes[i];
            if (type_of(*mine.payload) != type_of(*node.payload)) {
                return fail(CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED, &node);
            }
            if (mine.dependencies.size() != node.dependencies.size()) {
                return fail(CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, &node);
            }
            for (const Node* dependency : node.dependencies) {
                if (!to.has_edge(*image[dependency], mine)) {
                    return fail(CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, &node);
                }
            }
            const auto inner = graphs_in(*node.payload), own = graphs_in(*mine.payload);
            if (inner.size() != own.size()) {
                return fail(CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED, &node);
            }
            for (std::size_t each = 0; each < inner.size(); ++each) {
                if (!pair(*own[each], *inner[each])) {
                    return false;
                }
            }
            if (!inner.empty()) {
                continue;
            }
            if (!may_change(*mine.payload, *node.payload, Purpose::update)) {
                return fail(CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED, &node);
            }
            pairs.emplace_back(&mine, &node);
        }
        return true;
    }
};

}  // namespace

Executable::Executable(GraphPtr own_copy) : graph(std::move(own_copy)) {
    for_each_memory(*graph, [](GraphMemory& memory, bool allocates) {
        if (allocates) {
            memory.set_instantiated(true);
        }
    });
    for_each_condition(*graph, [](GraphCondition& condition) { condition.set_instantiated(true); });
    renew_plan();
}

Executable::~Executable() {
    for_each_condition(*graph, [](GraphCondition& condition) { condition.set_instantiated(false); });
    for_each_memory(*graph, [](GraphMemory& memory, bool allocates) {
        if (allocates) {
            memory.set_instantiated(false);
        }
    });
}

Node* Executable::find(const Node& original) const {
    return find_in(*graph, original.id);
}

void Executable::renew_plan() {
    auto made = std::make_shared<Plan>();
    inline_graph(*made, *graph);
    plan = std::move(made);
}

bool Executable::make_local_room(const Plan& plan) {
    bool room = true;
    for (const Plan::Step& step : plan.steps) {
        if (const auto* kernel = step.payload == nullptr ? nullptr : std::get_if<KernelPayload>(step.payload.get())) {
            room = kernel->call.module->context->make_local_room(kernel->call.function->code->local_bytes) && room;
        }
        if (step.conditional != nullptr) {
            for (const auto& body : step.conditional->bodies) {
                room = make_local_room(*body) && room;
            }
        }
    }
    return room;
}

bool may_change(const Payload& from, const Payload& to, Purpose purpose) {
    if (from.index() != to.index()) {
        return false;
    }
    if (const auto* copy = std::get_if<CopyPayload>(&from)) {
        const auto& other = std::get<CopyPayload>(to);
        return copy->context == other.context && same_copy(copy->copy, other.copy);
    }
    if (const auto* fill = std::get_if<FillPayload>(&from)) {
        const auto& other = std::get<FillPayload>(to);
        return fill->context == other.context && (fill->fill.height <= 1) == (other.fill.height <= 1);
    }
    if (const auto* kernel = std::get_if<KernelPayload>(&from)) {
        return kernel->call.module->context == std::get<KernelPayload>(to).call.module->context;
    }
    if (const auto* allocation = std::get_if<AllocationPayload>(&from)) {
        return purpose == Purpose::update && allocation->memory == std::get<AllocationPayload>(to).memory;
    }
    if (const auto* free = std::get_if<FreePayload>(&from)) {
        return purpose == Purpose::update && free->pointer == std::get<FreePayload>(to).pointer;
    }
    return true;
}

CUgraphExecUpdateResultInfo update(Graph& own, const Graph& from) {
    Pairing pairing;
    if (!pairing.pair(own, from)) {
        return pairing.info;
    }
    for (const auto& [mine, node] : pairing.pairs) {
        mine->payload = node->payload;
    }
    own.objects = from.objects;
    return pairing.info;
}

CUresult instantiate(const GraphPtr& graph, unsigned long long flags, CUDA_GRAPH_INSTANTIATE_PARAMS* params,
                     CUgraphExec* result) {
    const auto fail = [&](CUresult error, CUgraphInstantiateResult why) {
        if (params != nullptr) {
            params->result_out = why;
        }
        return error;
    };
    if (result == nullptr || (flags & ~kKnownFlags) != 0 || graph->capturing || graph->is_body) {
        return fail(CUDA_ERROR_INVALID_VALUE, CUDA_GRAPH_INSTANTIATE_ERROR);
    }
    if ((flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) != 0) {
        return fail(CUDA_ERROR_NOT_SUPPORTED, CUDA_GRAPH_INSTANTIATE_ERROR);
    }
    if (!sorts(*graph)) {
        return fail(CUDA_ERROR_INVALID_VALUE, CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE);
    }
    if (has_unused_condition(*graph)) {
        return fail(CUDA_ERROR_INVALID_VALUE, CUDA_GRAPH_INSTANTIATE_CONDITIONAL_HANDLE_UNUSED);
    }
    if (const Node* const misplaced = misplaced_node(*graph, false)) {
        if (params != nullptr) {
            params->hErrNode_out = reinterpret_cast<CUgraphNode>(const_cast<Node*>(misplaced));
        }
        return fail(CUDA_ERROR_INVALID_VALUE, CUDA_GRAPH_INSTANTIATE_NODE_OPERATION_NOT_SUPPORTED);
    }
    // A graph's memory has one address, and a condition one word, so only one executable at a time can own them.
    bool taken = false;
    for_each_condition(*graph, [&](GraphCondition& condition) { taken |= condition.instantiated(); });
    for_each_memory(*graph, [&](GraphMemory& memory, bool allocates) { taken |= allocates && memory.instantiated(); });
    if (taken) {
        return fail(CUDA_ERROR_NOT_SUPPORTED, CUDA_GRAPH_INSTANTIATE_ERROR);
    }
    auto executable = std::make_shared<Executable>(graph->clone(false));
    executable->flags = flags;
    graphs().executables.add(executable);
    *result = reinterpret_cast<CUgraphExec>(executable.get());
    if (params != nullptr) {
        params->result_out = CUDA_GRAPH_INSTANTIATE_SUCCESS;
    }
    return CUDA_SUCCESS;
}

CUresult launch(const std::shared_ptr<Executable>& executable, const StreamPtr& stream) {
    auto run = std::make_shared<PlanRun>(stream->context);
    {
        const Lock lock(graph_mutex());
        std::map<GraphMemory*, bool> left;  // memory that the graph allocates; true if the graph does not free it again
        for_each_memory(*executable->graph, [&](GraphMemory& memory, bool allocates) {
            if (allocates) {
                left.emplace(&memory, true);
            }
        });
        for_each_memory(*executable->graph, [&](GraphMemory& memory, bool allocates) {
            if (!allocates && left.count(&memory) != 0) {
                left[&memory] = false;
            }
        });
        bool frees_nothing = false;
        for_each_memory(*executable->graph, [&](GraphMemory& memory, bool allocates) {
            frees_nothing |= !allocates && left.count(&memory) == 0 && !memory.held();
        });
        if (frees_nothing) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        for (const auto& [memory, stays] : left) {
            if (!memory->held()) {
                continue;
            }
            if ((executable->flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) == 0) {
                return CUDA_ERROR_INVALID_VALUE;
            }
            run->free_first(memory->shared_from_this());
        }
        for (const auto& [memory, stays] : left) {
            if (!memory->commit()) {
                return CUDA_ERROR_OUT_OF_MEMORY;
            }
        }
        for_each_memory(*executable->graph, [&](GraphMemory& memory, bool allocates) {
            if (!allocates) {
                memory.set_held(false);
            }
        });
        for (const auto& [memory, stays] : left) {
            memory->set_held(stays);
            run->uses(memory->shared_from_this());
        }
        run->take(executable->plan, executable->last_launch);
        run->keep(executable->graph);
        executable->last_launch = run->done();
    }
    submit_ordered(stream, [run] { return run->run(); });
    return CUDA_SUCCESS;
}

}  // namespace gpupool::softgpu
