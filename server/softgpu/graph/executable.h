// Instantiated graphs: a private copy of the graph that can still be changed, and the plan that its launches run.
//
// Ownership: launches share the plan that was current when they were made; a change of the executable makes a new plan.
// Threads: any; graph_mutex() guards everything. Errors: CUresult.
#pragma once

#include "server/softgpu/graph/graph.h"

namespace gpupool::softgpu {

// A graph with its child graphs inlined. A child's steps lie between an empty first and an empty last step. The graphs
// of a conditional node are plans of their own.
struct Plan {
    struct Conditional {
        std::shared_ptr<GraphCondition> condition;
        CUgraphConditionalNodeType type = CU_GRAPH_COND_TYPE_IF;
        std::vector<std::shared_ptr<const Plan>> bodies;
    };
    struct Step {
        PayloadPtr payload;  // null: no work, only edges
        std::shared_ptr<const Conditional> conditional;
        std::vector<std::uint32_t> dependents;
        std::uint32_t dependency_count = 0;
    };
    std::vector<Step> steps;
    std::vector<std::shared_ptr<GraphCondition>>
        conditions;  // of its own conditional nodes and of those in their graphs
};

struct Executable {
    explicit Executable(GraphPtr own_copy);
    ~Executable();

    GraphPtr graph;
    unsigned long long flags = 0;
    std::shared_ptr<const Plan> plan;
    std::shared_ptr<Moment> last_launch;  // launches of one executable graph run in order

    // The copy of a node of the original graph; null if there is none.
    Node* find(const Node& original) const GP_REQUIRES(graph_mutex());
    void renew_plan() GP_REQUIRES(graph_mutex());
    // Provides local memory for the plan's kernels; waits for the GPU. False if the device has too little memory.
    static bool make_local_room(const Plan& plan) GP_EXCLUDES(graph_mutex());
};

enum class Purpose : std::uint8_t { set_params, update };
// Whether a node of an executable graph may change from `from` to `to`.
bool may_change(const Payload& from, const Payload& to, Purpose purpose);

// Takes over the parameters of a graph of the same shape, or says why not. The caller must
// renew the plan afterwards.
CUgraphExecUpdateResultInfo update(Graph& own, const Graph& from) GP_REQUIRES(graph_mutex());

CUresult instantiate(const GraphPtr& graph, unsigned long long flags, CUDA_GRAPH_INSTANTIATE_PARAMS* params,
                     CUgraphExec* result) GP_REQUIRES(graph_mutex());
CUresult launch(const std::shared_ptr<Executable>& executable, const StreamPtr& stream) GP_EXCLUDES(graph_mutex());

}  // namespace gpupool::softgpu
