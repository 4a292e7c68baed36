// Graphs as a program builds them: nodes, their payloads (what each node does), and the edges between them.
//
// Ownership: a Graph owns its nodes, a child graph's node owns its graph. `graphs()` resolves handles. Payloads are
//   never changed in place but replaced, so that clones and running graphs can share them.
// Threads: everything is guarded by graph_mutex(), one per process, since captures touch graphs from several threads.
//   It is never held while work is submitted or waited for.
// Errors: CUresult, as the driver returns them.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "common/mutex.h"
#include "server/softgpu/api/kernel_call.h"
#include "server/softgpu/graph/condition.h"
#include "server/softgpu/graph/memory.h"
#include "server/softgpu/graph/user_objects.h"

namespace gpupool::softgpu {

struct Graph;
struct Node;
struct Executable;
using GraphPtr = std::shared_ptr<Graph>;
using NodePtr = std::shared_ptr<Node>;

struct KernelPayload {
    KernelCall call;
    std::map<int, CUlaunchAttributeValue> attributes;
    // The result of a query of the parameters, in the form in which the node was made. Both point into this payload.
    std::vector<void*> addresses;
    bool packed = false;  // made with one buffer of all arguments (CU_LAUNCH_PARAM_*)
    std::size_t packed_bytes = 0;
    std::array<void*, 5> extra{};
};
struct CopyPayload {
    CUDA_MEMCPY3D copy{};
    Context* context = nullptr;
};
struct FillPayload {
    CUDA_MEMSET_NODE_PARAMS fill{};
    Context* context = nullptr;
};
struct HostPayload {
    CUhostFn function = nullptr;
    void* data = nullptr;
};
struct ChildPayload {
    GraphPtr graph;
};
struct EmptyPayload {};
struct WaitPayload {
    std::shared_ptr<Event> event;
};
struct RecordPayload {
    std::shared_ptr<Event> event;
};
struct AllocationPayload {
    CUDA_MEM_ALLOC_NODE_PARAMS params{};
    std::vector<CUmemAccessDesc> access;
    std::shared_ptr<GraphMemory> memory;
};
struct FreePayload {
    CUdeviceptr pointer = 0;
    std::shared_ptr<GraphMemory> memory;
};
struct MemoryOperationsPayload {
    Context* context = nullptr;
    std::vector<CUstreamBatchMemOpParams> operations;
    unsigned flags = 0;
};
struct ConditionalPayload {
    std::shared_ptr<GraphCondition> condition;
    CUgraphConditionalNodeType type = CU_GRAPH_COND_TYPE_IF;
    std::vector<GraphPtr> bodies;
    std::vector<CUgraph> handles;  // of the bodies, for the program
};
using Payload =
    std::variant<KernelPayload, CopyPayload, FillPayload, HostPayload, ChildPayload, EmptyPayload, WaitPayload,
                 RecordPayload, AllocationPayload, FreePayload, MemoryOperationsPayload, ConditionalPayload>;
using PayloadPtr = std::shared_ptr<const Payload>;

CUgraphNodeType type_of(const Payload& payload);
// The graphs within a node: a child graph, or a conditional node's.
std::vector<GraphPtr> graphs_in(const Payload& payload);

struct Node {
    Graph* graph = nullptr;
    unsigned long long id = 0;
    unsigned long long origin = 0;  // id of the node that this one was cloned from
    PayloadPtr payload;
    std::vector<Node*> dependencies;  // in the order in which the edges were made
    std::vector<Node*> dependents;
    bool enabled = true;  // of an executable graph's copy
};

// An edge with a port other than the default waits for the whole node too, since the software GPU has no programmatic
// launches.
struct Graph : std::enable_shared_from_this<Graph> {
    ~Graph();
    std::vector<NodePtr> nodes;  // in the order in which they were made
    unsigned long long id = 0;
    unsigned long long origin = 0;
    bool is_child = false;  // a child graph's handle is its node's
    bool is_body = false;   // of a conditional node
    // Made for this graph or, if it belongs to a conditional node, for the graph around it.
    using Conditions = std::vector<std::shared_ptr<GraphCondition>>;
    std::shared_ptr<Conditions> conditions = std::make_shared<Conditions>();
    UserReferences objects;
    bool capturing = false;

    Node* add(PayloadPtr payload, const std::vector<Node*>& dependencies);
    void remove(Node& node);
    bool has_edge(const Node& from, const Node& to) const;
    void add_edge(Node& from, Node& to);
    void remove_edge(Node& from, Node& to);
    std::vector<Node*> roots() const;
    // Dependencies first. Empty if there is a cycle.
    std::optional<std::vector<Node*>> sorted() const;
    // `registered`: the clone's nodes can be found by their handles.
    GraphPtr clone(bool registered) const;
    void register_nodes();
    bool holds_memory_nodes() const;
    bool holds_conditional_nodes() const;
};

struct GraphRegistries {
    Registry<Graph> graphs;
    Registry<Node> nodes;
    Registry<Executable> executables;
    Registry<UserObject> user_objects;
};
GraphRegistries& graphs();

}  // namespace gpupool::softgpu
