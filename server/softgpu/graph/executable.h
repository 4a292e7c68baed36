// Graphs that were instantiated: a private copy of the graph that can still be changed, and the plan that its launches
// follow.
//
// Ownership: launches share the plan that was current when they were made; changing the executable makes another plan.
// Threads: the caller holds graph_mutex() where that is said. Errors: CUresult.
#pragma once

#include "server/softgpu/graph/graph.h"

namespace gpupool::softgpu {

// A graph with its children laid flat. The steps of a child lie between a beginning and an end, both empty.
struct Plan {
    struct Step {
        PayloadPtr payload;  // null: nothing to do, here because of its edges
        std::vector<std::uint32_t> dependents;
        std::uint32_t dependency_count = 0;
    };
    std::vector<Step> steps;
};

struct Executable {
    explicit Executable(GraphPtr own_copy);
    ~Executable();

    GraphPtr graph;
    unsigned long long flags = 0;
    std::shared_ptr<const Plan> plan;
    std::shared_ptr<Moment> last_launch;  // launches of one executable graph run one after the other

    // The copy of a node of the graph that this was instantiated from; null when it has none. Under graph_mutex().
    Node* find(const Node& original) const;
    void renew_plan();
    // For the local memory of its kernels; waits for what the GPU does. Not under graph_mutex().
    static void make_local_room(const Plan& plan);
};

enum class Purpose : std::uint8_t { set_params, update };
// Whether what a node of an executable graph does may be changed to `to`.
bool may_change(const Payload& from, const Payload& to, Purpose purpose);

// Takes over what the nodes of a graph of the same shape do, or says why not. Under graph_mutex().
// The plan has to be renewed afterwards.
CUgraphExecUpdateResultInfo update(Graph& own, const Graph& from);

// Under graph_mutex(), except launch().
CUresult instantiate(const GraphPtr& graph, unsigned long long flags, CUDA_GRAPH_INSTANTIATE_PARAMS* params,
                     CUgraphExec* result);
CUresult launch(const std::shared_ptr<Executable>& executable, const StreamPtr& stream);

}  // namespace gpupool::softgpu
