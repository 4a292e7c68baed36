#include "server/softgpu/graph/graph.h"

#include <algorithm>
#include <unordered_map>

#include "common/mutex.h"

namespace gpupool::softgpu {
namespace {

template <class T>
void erase_one(std::vector<T*>& from, const T* what) {
    from.erase(std::find(from.begin(), from.end(), what));
}

}  // namespace

Mutex& graph_mutex() {
    static Mutex& mutex = *new Mutex;
    return mutex;
}

GraphRegistries& graphs() {
    static GraphRegistries& instance = *new GraphRegistries;
    return instance;
}

CUgraphNodeType type_of(const Payload& payload) {
    constexpr CUgraphNodeType kTypes[] = {
        CU_GRAPH_NODE_TYPE_KERNEL,     CU_GRAPH_NODE_TYPE_MEMCPY,       CU_GRAPH_NODE_TYPE_MEMSET,
        CU_GRAPH_NODE_TYPE_HOST,       CU_GRAPH_NODE_TYPE_GRAPH,        CU_GRAPH_NODE_TYPE_EMPTY,
        CU_GRAPH_NODE_TYPE_WAIT_EVENT, CU_GRAPH_NODE_TYPE_EVENT_RECORD, CU_GRAPH_NODE_TYPE_MEM_ALLOC,
        CU_GRAPH_NODE_TYPE_MEM_FREE,   CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, CU_GRAPH_NODE_TYPE_CONDITIONAL};
    static_assert(std::size(kTypes) == std::variant_size_v<Payload>);
    return kTypes[payload.index()];
}

std::vector<GraphPtr> graphs_in(const Payload& payload) {
    if (const auto* child = std::get_if<ChildPayload>(&payload)) {
        return {child->graph};
    }
    const auto* conditional = std::get_if<ConditionalPayload>(&payload);
    return conditional == nullptr ? std::vector<GraphPtr>{} : conditional->bodies;
}

Graph::~Graph() {
    for (const auto& node : nodes) {
        graphs().nodes.remove(node.get());
        for (const GraphPtr& inner : graphs_in(*node->payload)) {
            graphs().graphs.remove(inner.get());
        }
    }
}

Node* Graph::add(PayloadPtr payload, const std::vector<Node*>& dependencies) {
    auto node = std::make_shared<Node>();
    node->graph = this;
    node->id = state().next_id.fetch_add(1);
    node->payload = std::move(payload);
    nodes.push_back(node);
    for (Node* from : dependencies) {
        add_edge(*from, *node);
    }
    return node.get();
}

void Graph::remove(Node& node) {
    for (Node* from : node.dependencies) {
        erase_one(from->dependents, &node);
    }
    for (Node* to : node.dependents) {
        erase_one(to->dependencies, &node);
    }
    graphs().nodes.remove(&node);
    for (const GraphPtr& inner : graphs_in(*node.payload)) {
        graphs().graphs.remove(inner.get());
    }
    nodes.erase(std::find_if(nodes.begin(), nodes.end(), [&](const NodePtr& n) { return n.get() == &node; }));
}

bool Graph::has_edge(const Node& from, const Node& to) const {
    return std::find(to.dependencies.begin(), to.dependencies.end(), &from) != to.dependencies.end();
}

void Graph::add_edge(Node& from, Node& to) {
    from.dependents.push_back(&to);
    to.dependencies.push_back(&from);
}

void Graph::remove_edge(Node& from, Node& to) {
    erase_one(from.dependents, &to);
    erase_one(to.dependencies, &from);
}

std::vector<Node*> Graph::roots() const {
    std::vector<Node*> result;
    for (const auto& node : nodes) {
        if (node->dependencies.empty()) {
            result.push_back(node.get());
        }
    }
    return result;
}

std::optional<std::vector<Node*>> Graph::sorted() const {
    std::unordered_map<const Node*, std::size_t> missing;
    std::vector<Node*> result = roots();
    for (const auto& node : nodes) {
        missing[node.get()] = node->dependencies.size();
    }
    for (std::size_t i = 0; i < result.size(); ++i) {
        for (Node* to : result[i]->dependents) {
            if (--missing[to] == 0) {
                result.push_back(to);
            }
        }
    }
    if (result.size() != nodes.size()) {
        return std::nullopt;
    }
    return result;
}

namespace {

// A payload with clones of the graphs within it; the payload itself if there are none.
PayloadPtr clone_within(const PayloadPtr& payload, bool registered) {
    std::vector<GraphPtr> inner;
    for (const GraphPtr& graph : graphs_in(*payload)) {
        inner.push_back(graph->clone(registered));
        inner.back()->is_child = true;
        inner.back()->is_body = graph->is_body;
        if (registered) {
            graphs().graphs.add(inner.back());
        }
    }
    if (inner.empty()) {
        return payload;
    }
    if (std::holds_alternative<ChildPayload>(*payload)) {
        return std::make_shared<const Payload>(ChildPayload{std::move(inner.front())});
    }
    ConditionalPayload conditional = std::get<ConditionalPayload>(*payload);
    conditional.bodies = std::move(inner);
    return std::make_shared<const Payload>(std::move(conditional));
}

}  // namespace

GraphPtr Graph::clone(bool registered) const {
    auto result = std::make_shared<Graph>();
    result->id = state().next_id.fetch_add(1);
    result->origin = id;
    result->objects = objects;
    std::unordered_map<const Node*, Node*> image;
    for (const auto& node : nodes) {
        Node* copy = result->add(clone_within(node->payload, registered), {});
        copy->origin = node->id;
        copy->enabled = node->enabled;
        image[node.get()] = copy;
    }
    for (const auto& node : nodes) {
        for (const Node* from : node->dependencies) {
            result->add_edge(*image[from], *image[node.get()]);
        }
    }
    if (registered) {
        result->register_nodes();
    }
    return result;
}

void Graph::register_nodes() {
    for (const auto& node : nodes) {
        graphs().nodes.add(node);
    }
}

bool Graph::holds_memory_nodes() const {
    return std::any_of(nodes.begin(), nodes.end(), [](const NodePtr& node) {
        const auto inner = graphs_in(*node->payload);
        return std::holds_alternative<AllocationPayload>(*node->payload) ||
               std::holds_alternative<FreePayload>(*node->payload) ||
               std::any_of(inner.begin(), inner.end(),
                           [](const GraphPtr& graph) { return graph->holds_memory_nodes(); });
    });
}

bool Graph::holds_conditional_nodes() const {
    return std::any_of(nodes.begin(), nodes.end(), [](const NodePtr& node) {
        const auto inner = graphs_in(*node->payload);
        return std::holds_alternative<ConditionalPayload>(*node->payload) ||
               std::any_of(inner.begin(), inner.end(),
                           [](const GraphPtr& graph) { return graph->holds_conditional_nodes(); });
    });
}

}  // namespace gpupool::softgpu
