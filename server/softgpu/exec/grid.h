// Runs a grid. The stream's own thread and helper threads take clusters in order (of one block, unless the launch
// requests more), and each runs one at a time. If a cluster does not end, the thread starts a further one beside it,
// since the first may be waiting for a later one.
//
// Ownership: a Grid is shared by the threads that work on it. It refers to the LaunchState of its owner, which waits
//   for all of them.
// Threads: several may call work(), one the rest. Errors: the first fault ends the grid.
#pragma once

#include <atomic>
#include <deque>
#include <memory>

#include "common/mutex.h"
#include "server/softgpu/exec/block_runner.h"

namespace gpupool::softgpu {

// The multiprocessors that clusters are assigned to in turn: `count` of them, with these numbers, or from 0 on. None:
// one for each thread that runs blocks.
struct Multiprocessors {
    const std::uint32_t* numbers = nullptr;
    std::uint32_t count = 0;
};

class Grid {
  public:
    Grid(const LaunchState& launch, bool cooperative, const std::atomic<bool>& stop, Multiprocessors on = {});

    // Runs the grid to its end, with helpers if there are any, and returns the first fault.
    static Fault run(const LaunchState& launch, bool cooperative, const std::atomic<bool>& stop,
                     Multiprocessors on = {});

    void work();
    std::uint64_t cluster_count() const noexcept { return cluster_count_; }

  private:
    friend class HelperPool;
    struct Resident {
        std::vector<std::unique_ptr<BlockRunner>> runners;  // the blocks of a cluster
        std::vector<bool> finished;
        std::unique_ptr<Cluster> cluster;
        std::uint32_t slices = 0;
        bool active = false;
    };

    bool start_cluster(std::vector<Resident>& residents, std::uint32_t executor);
    Progress run_slice(Resident& resident, bool& paused);
    void work_as(std::uint32_t executor);
    void record(const Fault& fault);
    bool over() const noexcept {
        return faulted_.load(std::memory_order_relaxed) || stop_.load(std::memory_order_relaxed);
    }

    const LaunchState& launch_;
    const bool cooperative_;
    const std::atomic<bool>& stop_;
    const Multiprocessors on_;
    std::uint64_t cluster_count_;
    std::atomic<std::uint64_t> next_cluster_{0};
    std::atomic<std::uint32_t> next_executor_{0};
    std::atomic<bool> faulted_{false};
    Mutex mutex_;
    Fault fault_ GP_GUARDED_BY(mutex_);
};

// Helper threads for grids, one fewer than there are processors. They never end, since a kernel may never end either.
class HelperPool {
  public:
    static HelperPool& instance();
    // Returns when no helper works on `grid` any more. The caller has run work() itself.
    void help(Grid& grid, std::uint32_t helpers);
    void finish(Grid& grid);
    std::uint32_t size() const noexcept { return size_; }

  private:
    HelperPool();
    void loop();

    Mutex mutex_;
    Condition offered_;
    Condition left_;
    struct Offer {
        Grid* grid;
        std::uint32_t wanted;
        std::uint32_t working;
    };
    std::deque<Offer> offers_ GP_GUARDED_BY(mutex_);
    std::uint32_t size_ = 0;
};

}  // namespace gpupool::softgpu
