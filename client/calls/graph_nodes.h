// Adding and changing nodes of graphs: the driver's structs become the form in which parameters are sent
// (protocol/calls/graph_node.h).
//
// Ownership: values.
// Threads: any.
// Errors: the driver's.
#pragma once

#include <vector>

#include "client/core/graphs/node_storages.h"
#include "protocol/calls/graph_node.h"

namespace gpupool::client {

struct NodeMessage {
    GraphNode node;
    std::vector<unsigned char> payload;
};

// Converts the application's parameters. Error: what the driver would return, where the client can tell.
CUresult to_message(const CUgraphNodeParams& parameters, NodeMessage& message);

// Keeps what the parameters of a node point to, as long as the node. Pointers into `storage` stay valid.
void keep_storage(CUgraphNode node, NodeStorage storage);

// Sends new parameters of a node: of the graph's node, or, if `executable` is not null, of that node in it.
CUresult set_node(CUgraphExec executable, CUgraphNode changed, const CUgraphNodeParams& parameters);

}  // namespace gpupool::client
