// One launch of a graph. Runs its steps in an order that their edges allow, independent ones in parallel.
//
// Ownership: shared by the stream's work and the helper threads.
// Threads: the stream's thread calls run(). It runs one step itself and starts a helper thread for each other step that
//   is ready at the same time, since one step may wait for what another does. It joins them before it returns.
// Errors: after the first step that fails, the others are skipped.
#pragma once

#include "common/mutex.h"
#include "server/softgpu/graph/executable.h"

namespace gpupool::softgpu {

class PlanRun : public std::enable_shared_from_this<PlanRun> {
  public:
    explicit PlanRun(Context& context);
    // Reaches all moments of this launch, so that waiting threads return even if a fault skipped it.
    ~PlanRun();
    PlanRun(const PlanRun&) = delete;
    PlanRun& operator=(const PlanRun&) = delete;

    void free_first(std::shared_ptr<GraphMemory> memory) { free_first_.push_back(std::move(memory)); }
    // Keeps the memory in use until this run ends.
    void uses(std::shared_ptr<GraphMemory> memory);
    // From here on, the events that the plan records refer to this launch.
    void take(std::shared_ptr<const Plan> plan, std::shared_ptr<Moment> previous) GP_REQUIRES(graph_mutex());
    const std::shared_ptr<Moment>& done() const { return done_; }
    // The program's objects live until the launch is complete, even if the executable is destroyed.
    void keep(GraphPtr graph) { graph_ = std::move(graph); }
    // The same for the plan of a conditional node's graph, which records no events.
    void take_body(std::shared_ptr<const Plan> plan);

    CUresult run();

  private:
    void work(UniqueLock& lock) GP_REQUIRES(mutex_);
    void start_helpers() GP_REQUIRES(mutex_);
    CUresult run_step(std::uint32_t step);
    CUresult run_conditional(const Plan::Conditional& conditional);
    void end_use();
    void reach_all();

    Context& context_;
    std::shared_ptr<const Plan> plan_;
    GraphPtr graph_;
    std::vector<std::shared_ptr<Moment>> moments_;  // of record steps; null for others
    std::vector<std::shared_ptr<GraphMemory>> free_first_, used_;
    std::shared_ptr<Moment> previous_, done_;

    Mutex mutex_;
    Condition changed_;
    std::vector<std::uint32_t> missing_ GP_GUARDED_BY(mutex_);
    std::deque<std::uint32_t> ready_ GP_GUARDED_BY(mutex_);
    std::size_t remaining_ GP_GUARDED_BY(mutex_) = 0;
    std::size_t helpers_ GP_GUARDED_BY(mutex_) = 0;
    std::size_t starting_ GP_GUARDED_BY(mutex_) = 0;  // helpers that have not picked a step yet
    CUresult result_ = CUDA_SUCCESS;
    bool body_ = false;  // of a conditional node: the launch has assigned the conditions
};

}  // namespace gpupool::softgpu
