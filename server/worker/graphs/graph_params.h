// A graph node's parameters between what travels (protocol/calls/graph_node.h) and the driver's structs.
//
// Host functions and host memory are the client's: a node says their names where the driver wants an address. What the
// driver is to run is made from that when the graph is instantiated (graph_exec.h); nothing that a client says is ever
// used as an address of this process.
//
// Threads: the dispatcher's alone.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "protocol/calls/graph_node.h"
#include "server/driver/api.h"
#include "server/worker/session/handle_table.h"

namespace gpupool::worker {

struct Objects;

// The function that stands for the client's in a graph that only describes: it is never called.
void placeholder_function(void* name);

// The driver's parameters, and what they point to.
class NodeParameters {
  public:
    // Translates handles. The payload must outlive this.
    CUresult read(const HandleTable& handles, Objects& objects, const GraphNode& node,
                  std::span<unsigned char> payload);

    CUgraphNodeParams driver{};

  private:
    CUresult read_operations(const GraphNode& node, std::span<const unsigned char> payload);

    std::size_t argument_bytes_ = 0;
    void* extra_[5] = {};
    std::vector<CUmemAccessDesc> access_;
    std::vector<CUstreamBatchMemOpParams> operations_;
};

// What a driver's node does, with the client's handles. `payload_bytes` is what it has of variable data; as much of
// that as `payload` has room for is written there.
CUresult describe(const driver::Api& api, HandleTable& handles, CUgraphNode node, GraphNode& out,
                  std::vector<unsigned char>& payload, std::size_t& payload_bytes);

}  // namespace gpupool::worker
