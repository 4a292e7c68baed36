// Converts a graph node's parameters between their wire form (protocol/calls/graph_node.h) and the driver's structs.
//
// Host functions and host memory belong to the client: a node holds their names in place of addresses. When the graph
// is instantiated, graph_exec.h makes from that what the driver runs. No value from the client is ever used as an
// address of this process.
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

// Stands for the client's functions in a graph. Does nothing: client steps call the functions.
void placeholder_function(void* name);

// The driver's parameters, and what they point to.
class NodeParameters {
  public:
    // Translates handles. The payload must outlive this object.
    CUresult read(const HandleTable& handles, Objects& objects, const GraphNode& node,
                  std::span<unsigned char> payload);

    // Passes a kernel's arguments one by one, if the driver says where they are: it refuses to make a node with packed
    // arguments cooperative.
    void unpack_arguments(const driver::Api& api);

    CUgraphNodeParams driver{};

  private:
    CUresult read_operations(const GraphNode& node, std::span<const unsigned char> payload);

    std::size_t argument_bytes_ = 0;
    void* extra_[5] = {};
    std::vector<void*> arguments_;
    bool by_kernel_ = false;
    std::vector<CUmemAccessDesc> access_;
    std::vector<CUstreamBatchMemOpParams> operations_;
};

// Describes a node of the driver with the client's handles. `payload_bytes` becomes the size of its variable data; as
// much of that as fits is written to `payload`.
CUresult describe(const driver::Api& api, HandleTable& handles, CUgraphNode node, GraphNode& out,
                  std::vector<unsigned char>& payload, std::size_t& payload_bytes);

}  // namespace gpupool::worker
