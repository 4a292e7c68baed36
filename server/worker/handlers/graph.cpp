// Graphs: calls that add and change nodes, described by their parameters, and queries of graphs.

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <utility>

#include "common/unique_fd.h"
#include "server/worker/graphs/graph_book.h"
#include "server/worker/graphs/graph_changes.h"
#include "server/worker/graphs/graph_params.h"
#include "server/worker/graphs/graph_shape.h"
#include "server/worker/handlers/graphs.h"
#include "server/worker/handlers/handlers.h"
#include "server/worker/scheduling/driver_door.h"

namespace gpupool::worker::handlers {
namespace {

constexpr std::uint64_t kMaxAddedNodes = 2u << 20;  // of all graphs, child graphs included

unsigned level_of(const GraphView& session, CUgraph graph) {
    const auto it = session.graphs.levels.find(graph);
    return it == session.graphs.levels.end() ? 1 : it->second;
}

// Records the nesting depth of the graphs within `node`, a new node of a graph at `level`: nodes may be added to them
// too.
void note_levels(GraphView& session, CUgraphNode node, unsigned level) {
    CUgraph child = nullptr;
    std::vector<CUgraphNode> nodes;
    if (child_of(session.api, node, child) != CUDA_SUCCESS || child == nullptr ||
        nodes_of(session.api, child, nodes) != CUDA_SUCCESS) {
        return;
    }
    session.graphs.levels[child] = level + 1;
    for (const CUgraphNode inner : nodes) {
        note_levels(session, inner, level + 1);
    }
}

// How many nodes the driver will create for `added`, counting each graph of its own as one; an error if that is too
// many.
CUresult nodes_to_add(GraphView& session, CUgraph graph, const CUgraphNodeParams& added, std::uint64_t& nodes) {
    nodes = 1;
    if (added.type == CU_GRAPH_NODE_TYPE_GRAPH) {
        GraphShape child;
        if (const CUresult result = shape_of(session.api, added.graph.graph, kMaxGraphNodes, child);
            result != CUDA_SUCCESS) {
            return result;
        }
        if (level_of(session, graph) + child.depth > kMaxGraphDepth) {
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        nodes += child.nodes;
    }
    if (added.type == CU_GRAPH_NODE_TYPE_CONDITIONAL) {
        if (level_of(session, graph) >= kMaxGraphDepth) {
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        nodes += added.conditional.size;
    }
    std::uint64_t& in_graph = session.graphs.added_nodes[graph];
    const auto fits = [&] {
        return in_graph + nodes <= kMaxGraphNodes && session.graphs.all_added_nodes + nodes <= kMaxAddedNodes;
    };
    GraphShape now;
    if (!fits() && !session.graphs.full.contains(graph) &&
        shape_of(session.api, graph, kMaxGraphNodesAtAll, now) == CUDA_SUCCESS && now.nodes < in_graph) {
        session.graphs.all_added_nodes -= in_graph - now.nodes;  // some were destroyed since they were counted
        in_graph = now.nodes;
    }
    if (fits()) {
        return CUDA_SUCCESS;
    }
    session.graphs.full.insert(graph);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

// `added_to` becomes the driver's graph, or null if the client's handle is invalid.
template <class Call>
CUresult add_node(GraphView& session, Command& command, codec::Slots<Call>& slots, NodeParameters& parameters,
                  CUgraph& added_to) {
    const GraphNode& node = slots.template at<Call::node>().object;
    CUgraph& graph = slots.template at<Call::graph>().value;
    const std::size_t count = slots.template at<Call::dependency_count>().value;
    const std::size_t edge_count = slots.template at<Call::edge_count>().value;
    if (slots.template at<Call::node>().value == nullptr || (edge_count != 0 && edge_count != count)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    Translator translator{session, command};
    translator.handle(graph);
    added_to = translator.result == CUDA_SUCCESS ? graph : nullptr;
    for (CUgraphNode& dependency : slots.template at<Call::dependencies>().object) {
        translator.handle(dependency);
    }
    if (translator.result != CUDA_SUCCESS || graph == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result =
        parameters.read(session.handles, session.objects, node, slots.template at<Call::payload>().object);
    if (result == CUDA_SUCCESS) {
        result = session.scheduler.enter(session.context_of(command));
    }
    parameters.unpack_arguments(session.api);
    std::uint64_t nodes = 0;
    if (result == CUDA_SUCCESS && node.type == CU_GRAPH_NODE_TYPE_GRAPH) {
        result = failure_of(session, parameters.driver.graph.graph);
    }
    if (result == CUDA_SUCCESS) {
        result = nodes_to_add(session, graph, parameters.driver, nodes);
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    CUgraphNode& created = slots.template at<Call::created>().object;
    const CUgraphEdgeData* const edges = edge_count == 0 ? nullptr : slots.template at<Call::edges>().value;
    result = driver::call(session.api.cuGraphAddNode_v2, &created, graph, slots.template at<Call::dependencies>().value,
                          edges, count, &parameters.driver);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    session.graphs.added_nodes[graph] += nodes;
    session.graphs.all_added_nodes += nodes;
    if (node.type == CU_GRAPH_NODE_TYPE_GRAPH) {
        note_levels(session, created, level_of(session, graph));
    }
    return CUDA_SUCCESS;
}

}  // namespace

Outcome gpGraphAddNode(GraphView& session, Command& command, codec::Slots<calls::gpGraphAddNode>& slots) {
    NodeParameters parameters;
    CUgraph graph = nullptr;
    const CUresult result = is_owning_node(slots.at<calls::gpGraphAddNode::node>().object.type)
                                ? CUDA_ERROR_INVALID_VALUE
                                : add_node(session, command, slots, parameters, graph);
    if (result != CUDA_SUCCESS && graph != nullptr && !command.reply_wanted()) {
        session.graphs.failed.try_emplace(graph, result);
    }
    return result;
}

Outcome gpGraphAddOwningNode(GraphView& session, Command& command, codec::Slots<calls::gpGraphAddOwningNode>& slots) {
    using Call = calls::gpGraphAddOwningNode;
    const GraphNode& node = slots.at<Call::node>().object;
    auto& graphs = slots.at<Call::graphs>().object;
    const std::size_t graph_count = slots.at<Call::graph_count>().value;
    const bool conditional = node.type == CU_GRAPH_NODE_TYPE_CONDITIONAL;
    if (!is_owning_node(node.type) || (conditional && graph_count != node.count)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    NodeParameters parameters;
    CUgraph graph = nullptr;
    const CUresult result = add_node(session, command, slots, parameters, graph);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    slots.at<Call::address>().object = conditional ? CUdeviceptr{0} : parameters.driver.alloc.dptr;
    if (conditional && parameters.driver.conditional.phGraph_out != nullptr) {
        const std::span<const CUgraph> bodies(parameters.driver.conditional.phGraph_out, graph_count);
        session.graphs.bodies[slots.at<Call::created>().object].assign(bodies.begin(), bodies.end());
        for (const CUgraph body : bodies) {
            session.graphs.levels[body] = level_of(session, graph) + 1;
        }
        std::copy_n(bodies.begin(), std::min(graph_count, graphs.size()), graphs.begin());
    }
    return CUDA_SUCCESS;
}

Outcome gpGraphNodeSetParams(GraphView& session, Command& command, codec::Slots<calls::gpGraphNodeSetParams>& slots) {
    using Call = calls::gpGraphNodeSetParams;
    CUgraphNode changed = slots.at<Call::changed>().value;
    if (slots.at<Call::node>().value == nullptr || session.handles.translate(changed) != CUDA_SUCCESS) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const bool of_executable = slots.at<Call::executable>().value != nullptr;
    const auto graph = of_executable ? session.graphs.executable(slots.at<Call::executable>().value) : nullptr;
    if (of_executable && graph == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (auto waiting = of_executable
                           ? await_launches(session, command, slots.at<Call::executable>().value, graph, changed)
                           : std::nullopt) {
        return std::move(*waiting);
    }
    const auto note = [&session, changed, graph](const Command& made, CUresult result) {
        return graph == nullptr ? note_change(session, made, changed, result) : note_change(made, *graph, result);
    };
    struct Change {
        std::vector<unsigned char> payload;
        NodeParameters parameters;
    };
    const auto change = std::make_shared<Change>();
    const std::span<const unsigned char> payload = slots.at<Call::payload>().object;
    change->payload.assign(payload.begin(), payload.end());
    CUgraphNodeParams& parameters = change->parameters.driver;
    CUresult result =
        change->parameters.read(session.handles, session.objects, slots.at<Call::node>().object, change->payload);
    if (result == CUDA_SUCCESS) {
        result = session.scheduler.enter(session.context_of(command));
    }
    if (result != CUDA_SUCCESS) {
        return note(command, result);
    }
    change->parameters.unpack_arguments(session.api);
    if (!of_executable) {
        return note(command, driver::call(session.api.cuGraphNodeSetParams, changed, &parameters));
    }
    const bool has_kernels =
        parameters.type == CU_GRAPH_NODE_TYPE_KERNEL || parameters.type == CU_GRAPH_NODE_TYPE_GRAPH;
    if (!has_kernels) {
        return note(command, graph->set(changed, parameters));
    }
    const auto charge_and_answer = [&session, command, graph](CUresult set) {
        charge_stack_of(session, codec::from_wire<CUcontext>(command.header.context), *graph,
                        [&session, command, set] { session.answers.give(command, set); });
    };
    if (!session.door.gpu_may_wait_for_us()) {
        charge_and_answer(note(command, graph->set(changed, parameters)));
        return Outcome::answered();
    }
    change_elsewhere(
        session, command, [graph, changed, change] { return graph->set(changed, change->parameters.driver); },
        [&session, command, note, charge_and_answer](CUresult set) {
            session.gate.when_open([charge_and_answer, noted = note(command, set)] { charge_and_answer(noted); });
        });
    return Outcome::answered();
}

Outcome gpGraphNodeGetParams(SessionView& session, Command& command, codec::Slots<calls::gpGraphNodeGetParams>& slots) {
    using Call = calls::gpGraphNodeGetParams;
    CUgraphNode asked = slots.at<Call::asked>().value;
    if (!find_and_enter(session, command, asked)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return describe(session.api, session.handles, asked, slots.at<Call::node>().object,
                    slots.at<Call::payload>().object, slots.at<Call::payload_bytes>().object);
}

Outcome cuGraphDestroy(GraphView& session, Command& command, codec::Slots<calls::cuGraphDestroy>& slots) {
    CUgraph graph = slots.at<calls::cuGraphDestroy::hGraph>().value;
    if (!find_and_enter(session, command, graph)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    GraphContents contents;
    contents.add(session, graph);
    if (auto waiting = await_changes(session, command, is_named(session, contents))) {
        return std::move(*waiting);
    }
    const CUresult result = driver::call(session.api.cuGraphDestroy, graph);
    if (result == CUDA_SUCCESS) {
        contents.forget(session);
    }
    return result;
}

Outcome cuGraphDestroyNode(GraphView& session, Command& command, codec::Slots<calls::cuGraphDestroyNode>& slots) {
    CUgraphNode node = slots.at<calls::cuGraphDestroyNode::hNode>().value;
    if (!find_and_enter(session, command, node)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    GraphContents within;
    within.add_children(session, node, 1);
    const bool named = session.graphs.changes_waiting.contains(node) || is_named(session, within);
    if (auto waiting = await_changes(session, command, named)) {
        return std::move(*waiting);
    }
    const CUresult result = driver::call(session.api.cuGraphDestroyNode, node);
    if (result == CUDA_SUCCESS) {
        session.graphs.stand_ins.forget(node);  // the driver does not remove nodes where it keeps stand-ins
        within.forget(session);
        session.graphs.full.clear();
        session.graphs.failed_changes.erase(node);
        session.graphs.bodies.erase(node);
    }
    return result;
}

// Counts the copy as if its nodes had been added.
Outcome cuGraphClone(GraphView& session, Command& command, codec::Slots<calls::cuGraphClone>& slots) {
    using Call = calls::cuGraphClone;
    CUgraph original = slots.at<Call::originalGraph>().value;
    if (slots.at<Call::phGraphClone>().value == nullptr || !find_and_enter(session, command, original)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    GraphShape shape;
    CUresult result = failure_of(session, original);
    if (result == CUDA_SUCCESS) {
        result = shape_of(session.api, original, kMaxGraphNodesAtAll, shape);
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (session.graphs.all_added_nodes + shape.nodes > kMaxAddedNodes) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUgraph& clone = slots.at<Call::phGraphClone>().object;
    result = driver::call(session.api.cuGraphClone, &clone, original);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    session.graphs.added_nodes[clone] = shape.nodes;
    session.graphs.all_added_nodes += shape.nodes;
    std::vector<CUgraphNode> nodes;
    nodes_of(session.api, clone, nodes);
    for (const CUgraphNode node : nodes) {
        note_levels(session, node, 1);
    }
    return CUDA_SUCCESS;
}

Outcome cuGraphKernelNodeSetAttribute(SessionView& session, Command& command,
                                      codec::Slots<calls::cuGraphKernelNodeSetAttribute>& slots) {
    using Call = calls::cuGraphKernelNodeSetAttribute;
    CUgraphNode node = slots.at<Call::hNode>().value;
    if (slots.at<Call::value>().value == nullptr || !find_and_enter(session, command, node)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUlaunchAttribute attribute{};
    attribute.id = slots.at<Call::attr>().value;
    attribute.value = slots.at<Call::value>().object;
    CUresult result = CUDA_SUCCESS;
    codec::StructTraits<CUlaunchAttribute>::visit(attribute, [&](CUevent& event) {
        EventState* const state = session.objects.event(event);
        if (state == nullptr) {
            result = CUDA_ERROR_INVALID_HANDLE;
            return;
        }
        state->in_graph = true;
        event = state->driver;
    });
    if (result != CUDA_SUCCESS) {
        return result;
    }
    return driver::call(session.api.cuGraphKernelNodeSetAttribute, node, attribute.id,
                        static_cast<const CUkernelNodeAttrValue*>(&attribute.value));
}

Outcome gpGraphDot(GraphView& session, Command& command, codec::Slots<calls::gpGraphDot>& slots) {
    using Call = calls::gpGraphDot;
    constexpr std::size_t kMaxText = 256u << 20;
    CUgraph graph = slots.at<Call::graph>().value;
    if (!find_and_enter(session, command, graph)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    // The driver writes to a file by name. A worker's sandbox has no folder for one, so this file is in memory.
    const UniqueFd file(::memfd_create("gpupool-graph", MFD_CLOEXEC));
    if (!file) {
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    const std::string path = fmt::format("/proc/self/fd/{}", file.get());
    const CUresult result =
        driver::call(session.api.cuGraphDebugDotPrint, graph, path.c_str(), slots.at<Call::flags>().value);
    session.graphs.dot_text.clear();
    const off_t bytes = ::lseek(file.get(), 0, SEEK_END);
    const bool fits = bytes >= 0 && static_cast<std::uint64_t>(bytes) <= kMaxText;
    if (fits && result == CUDA_SUCCESS) {
        std::ifstream text(path);
        session.graphs.dot_text.assign(std::istreambuf_iterator<char>(text), {});
    }
    slots.at<Call::bytes>().object = session.graphs.dot_text.size();
    return fits ? result : CUDA_ERROR_OUT_OF_MEMORY;
}

Outcome gpGraphDotRead(GraphView& session, Command&, codec::Slots<calls::gpGraphDotRead>& slots) {
    using Call = calls::gpGraphDotRead;
    const std::size_t offset = slots.at<Call::offset>().value, bytes = slots.at<Call::data_bytes>().value;
    auto& data = slots.at<Call::data>().object;
    if (offset > session.graphs.dot_text.size() || bytes > session.graphs.dot_text.size() - offset ||
        data.size() < bytes) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    std::copy_n(session.graphs.dot_text.begin() + static_cast<std::ptrdiff_t>(offset), bytes, data.begin());
    return CUDA_SUCCESS;
}

}  // namespace gpupool::worker::handlers
