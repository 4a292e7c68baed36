// Converts a node's parameters from the driver's structs to the form in which they are sent
// (protocol/calls/graph_node.h).
//
// Ownership: values.
// Threads: any.
// Errors: the driver's.
#pragma once

#include <vector>

#include "protocol/calls/graph_node.h"

namespace gpupool::client {

struct NodeMessage {
    GraphNode node;
    std::vector<unsigned char> payload;
};

// Converts the application's parameters. Error: what the driver would return, where the client can tell.
CUresult to_message(const CUgraphNodeParams& parameters, NodeMessage& message);

// Sends new parameters of a node: of the graph's node, or, if `executable` is not null, of that node in it.
CUresult set_node(CUgraphExec executable, CUgraphNode changed, const CUgraphNodeParams& parameters);

}  // namespace gpupool::client
