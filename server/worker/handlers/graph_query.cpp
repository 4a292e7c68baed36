// Queries of a graph's shape. They do not show the nodes that the session has added to it (graphs/graph_expansion.h).

#include <algorithm>
#include <iterator>
#include <vector>

#include "server/worker/graphs/graph_book.h"
#include "server/worker/graphs/graph_shape.h"
#include "server/worker/handlers/graphs.h"
#include "server/worker/handlers/handlers.h"

namespace gpupool::worker::handlers {
namespace {

using Shown = std::vector<CUgraphNode>;

// Writes as much of `list` as there is room for, and clears the rest.
template <class T>
void fill(std::vector<T>& room, const std::vector<T>& list) {
    const std::size_t kept = std::min(room.size(), list.size());
    std::copy_n(list.begin(), kept, room.begin());
    std::fill(room.begin() + static_cast<std::ptrdiff_t>(kept), room.end(), T{});
}

// The count that a query returns: all if it has no room for them, else as many as it has room for.
void set_count(std::size_t& count, bool has_room, std::size_t all) {
    count = has_room ? std::min(count, all) : all;
}

CUresult neighbours_of(const driver::Api& api, CUgraphNode node, bool before, std::vector<CUgraphNode>& nodes,
                       std::vector<CUgraphEdgeData>& data) {
    const auto ask = [&](CUgraphNode* to, CUgraphEdgeData* edges, std::size_t* count) {
        return before ? driver::call(api.cuGraphNodeGetDependencies_v2, node, to, edges, count)
                      : driver::call(api.cuGraphNodeGetDependentNodes_v2, node, to, edges, count);
    };
    std::size_t count = 0;
    CUresult result = ask(nullptr, nullptr, &count);
    nodes.resize(result == CUDA_SUCCESS ? count : 0);
    data.resize(nodes.size());
    return nodes.empty() ? result : ask(nodes.data(), data.data(), &count);
}

// The nodes before or behind a node, and the data of the edges.
template <class Call, class Nodes>
CUresult neighbours(GraphView& session, const Command& command, codec::Slots<Call>& slots, Nodes& nodes,
                    std::size_t* count, bool before) {
    CUgraphNode node = slots.template at<Call::hNode>().value;
    if (count == nullptr || !find_and_enter(session, command, node)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    Shown all, shown;
    std::vector<CUgraphEdgeData> data, shown_data;
    const CUresult result = neighbours_of(session.api, node, before, all, data);
    for (std::size_t i = 0; i < all.size() && result == CUDA_SUCCESS; ++i) {
        if (!session.graphs.stand_ins.hides(all[i])) {
            shown.push_back(all[i]);
            shown_data.push_back(data[i]);
        }
    }
    fill(nodes.object, shown);
    fill(slots.template at<Call::edgeData>().object, shown_data);
    set_count(*count, nodes.value != nullptr, shown.size());
    return result;
}

CUresult edges_of(const driver::Api& api, CUgraph graph, Shown& from, Shown& to, std::vector<CUgraphEdgeData>& data) {
    const auto ask = [&](CUgraphNode* sources, CUgraphNode* targets, CUgraphEdgeData* edges, std::size_t* count) {
        return driver::call(api.cuGraphGetEdges_v2, graph, sources, targets, edges, count);
    };
    std::size_t count = 0;
    const CUresult result = ask(nullptr, nullptr, nullptr, &count);
    from.resize(result == CUDA_SUCCESS ? count : 0);
    to.resize(from.size());
    data.resize(from.size());
    return from.empty() ? result : ask(from.data(), to.data(), data.data(), &count);
}

// All nodes of the graph that the program knows.
CUresult shown_nodes(const GraphView& session, CUgraph graph, Shown& nodes) {
    const CUresult result = nodes_of(session.api, graph, nodes);
    std::erase_if(nodes, [&](CUgraphNode node) { return session.graphs.stand_ins.hides(node); });
    return result;
}

// Those that depend on no other node that the program knows.
CUresult shown_roots(const GraphView& session, CUgraph graph, Shown& nodes) {
    CUresult result = shown_nodes(session, graph, nodes);
    std::erase_if(nodes, [&](CUgraphNode node) {
        Shown before;
        std::vector<CUgraphEdgeData> data;
        const CUresult asked = neighbours_of(session.api, node, true, before, data);
        result = result == CUDA_SUCCESS ? asked : result;
        return std::any_of(before.begin(), before.end(),
                           [&](CUgraphNode one) { return !session.graphs.stand_ins.hides(one); });
    });
    return result;
}

// Serves a query of a graph's nodes: by the driver's call, or, if nodes are hidden, by `find`.
template <class Nodes>
CUresult nodes_in(GraphView& session, const Command& command, CUgraph graph, Nodes& nodes, std::size_t* count,
                  CUresult (*ask)(CUgraph, CUgraphNode*, std::size_t*),
                  CUresult (*find)(const GraphView&, CUgraph, Shown&)) {
    if (count == nullptr || !find_and_enter(session, command, graph)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (session.graphs.stand_ins.hidden.empty()) {
        return driver::call(ask, graph, nodes.value, count);
    }
    Shown shown;
    const CUresult result = find(session, graph, shown);
    fill(nodes.object, shown);
    set_count(*count, nodes.value != nullptr, shown.size());
    return result;
}

}  // namespace

Outcome cuGraphGetNodes(GraphView& session, Command& command, codec::Slots<calls::cuGraphGetNodes>& slots) {
    using Call = calls::cuGraphGetNodes;
    return nodes_in(session, command, slots.at<Call::hGraph>().value, slots.at<Call::nodes>(),
                    slots.at<Call::numNodes>().value, session.api.cuGraphGetNodes, shown_nodes);
}

Outcome cuGraphGetRootNodes(GraphView& session, Command& command, codec::Slots<calls::cuGraphGetRootNodes>& slots) {
    using Call = calls::cuGraphGetRootNodes;
    return nodes_in(session, command, slots.at<Call::hGraph>().value, slots.at<Call::rootNodes>(),
                    slots.at<Call::numRootNodes>().value, session.api.cuGraphGetRootNodes, shown_roots);
}

Outcome cuGraphGetEdges_v2(GraphView& session, Command& command, codec::Slots<calls::cuGraphGetEdges_v2>& slots) {
    using Call = calls::cuGraphGetEdges_v2;
    CUgraph graph = slots.at<Call::hGraph>().value;
    if (slots.at<Call::numEdges>().value == nullptr || !find_and_enter(session, command, graph)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    Shown from, to, shown_from, shown_to;
    std::vector<CUgraphEdgeData> data, shown_data;
    const CUresult result = edges_of(session.api, graph, from, to, data);
    for (std::size_t i = 0; i < from.size() && result == CUDA_SUCCESS; ++i) {
        if (!session.graphs.stand_ins.hides(from[i]) && !session.graphs.stand_ins.hides(to[i])) {
            shown_from.push_back(from[i]);
            shown_to.push_back(to[i]);
            shown_data.push_back(data[i]);
        }
    }
    fill(slots.at<Call::from>().object, shown_from);
    fill(slots.at<Call::to>().object, shown_to);
    fill(slots.at<Call::edgeData>().object, shown_data);
    set_count(slots.at<Call::numEdges>().object, slots.at<Call::from>().value != nullptr, shown_from.size());
    return result;
}

Outcome cuGraphNodeGetDependencies_v2(GraphView& session, Command& command,
                                      codec::Slots<calls::cuGraphNodeGetDependencies_v2>& slots) {
    using Call = calls::cuGraphNodeGetDependencies_v2;
    return neighbours(session, command, slots, slots.at<Call::dependencies>(), slots.at<Call::numDependencies>().value,
                      true);
}

Outcome cuGraphNodeGetDependentNodes_v2(GraphView& session, Command& command,
                                        codec::Slots<calls::cuGraphNodeGetDependentNodes_v2>& slots) {
    using Call = calls::cuGraphNodeGetDependentNodes_v2;
    return neighbours(session, command, slots, slots.at<Call::dependentNodes>(),
                      slots.at<Call::numDependentNodes>().value, false);
}

}  // namespace gpupool::worker::handlers
