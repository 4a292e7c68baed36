// A node's parameters between the driver's structs and what travels (protocol/calls/graph_node.h).
#pragma once

#include <vector>

#include "protocol/calls/graph_node.h"

namespace gpupool::client {

struct NodeMessage {
    GraphNode node;
    std::vector<unsigned char> payload;
};

// What an application says of a node. A driver's verdict where it can be given here.
CUresult to_message(const CUgraphNodeParams& parameters, NodeMessage& message);

// Sends a node's new parameters: of the graph's node, or, where `executable` is not null, of that node in it.
CUresult set_node(CUgraphExec executable, CUgraphNode changed, const CUgraphNodeParams& parameters);

}  // namespace gpupool::client
