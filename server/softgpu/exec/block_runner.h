// Runs the warps of one block, a time slice at a time, so that blocks that wait for each other can share a thread.
//
// Ownership: owns the block's warps, frames, shared and local memory, and reuses all of it for the next block.
// Threads: one at a time. Errors: the first fault of any warp ends the block; `fault()` returns it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "server/softgpu/exec/warp.h"

namespace gpupool::softgpu {

// waiting: every warp that has not finished waits for other blocks of the cluster.
enum class Progress : std::uint8_t { finished, unfinished, waiting, faulted };

class BlockRunner;

// The blocks of a cluster, which run on one thread, and the barrier between them.
struct Cluster {
    std::vector<BlockRunner*> blocks;
    std::vector<std::uint8_t*> shared;
    std::uint32_t arrived = 0;
    bool parity = false;
};

class BlockRunner {
  public:
    BlockRunner(const LaunchState& launch, std::uint32_t executor);
    ~BlockRunner();
    BlockRunner(const BlockRunner&) = delete;
    BlockRunner& operator=(const BlockRunner&) = delete;

    // The multiprocessor that the next block reports to be on.
    void run_on(std::uint32_t processor);
    // Starts a block of the grid.
    void begin(const std::uint32_t (&index)[3]);
    // Call once, before the first block: sets the runner's cluster and rank. A block without a cluster is a cluster of
    // one.
    void join(Cluster& cluster, std::uint32_t rank);
    // Runs every runnable warp for about `steps` loop iterations. `paused`: one of them executed nanosleep.
    Progress run(std::uint32_t steps, bool& paused);
    const Fault& fault() const noexcept { return fault_; }
    std::uint8_t* shared() const noexcept { return shared_.get(); }

  private:
    struct Barrier {
        std::uint32_t arrived = 0;
        std::uint32_t expected = 0;  // 0: all threads that have not exited
        std::uint32_t counted = 0;   // for bar.red
        bool all = true;
        bool any = false;
    };
    struct FreeFunction {
        void operator()(void* memory) const noexcept;
    };
    using Memory = std::unique_ptr<std::uint8_t, FreeFunction>;

    enum class WarpEnd : std::uint8_t { slice_over, blocked, finished, faulted };

    // --- block_runner.cpp
    Frame* new_frame(const CompiledFunction& function, Frame* parent);
    void free_frame(Frame* frame);
    void arrive(Warp& w, const Inst& i);
    void release_if_full(std::uint32_t id);
    void release(std::uint32_t id);
    void arrive_at_cluster(Warp& w);
    void wait_for_cluster(Warp& w);
    void release_cluster_if_full();
    std::uint32_t alive_threads() const noexcept;

    // --- warp_loop.cpp
    WarpEnd run_warp(Warp& w, std::uint32_t steps);
    bool next_group(Warp& w);
    void reconsider(Warp& w);
    void absorb(Warp& w);
    void take(Warp& w, std::size_t index);
    void branch(Warp& w, const Inst& i, std::uint32_t taken);
    void branch_table(Warp& w, const Inst& i);
    bool gather(Warp& w, const Inst& i);
    void leave_lanes(Warp& w, std::uint32_t lanes);
    void back_edge(Warp& w, const Inst& i);

    // --- warp_calls.cpp
    bool call(Warp& w, const Inst& i, std::uint32_t lanes);
    bool call_indirect(Warp& w, const Inst& i, const CallSite& site, std::uint32_t lanes);
    bool enter(Warp& w, const Inst& i, const CallSite& site, const CompiledFunction& callee, std::uint32_t lanes);
    bool builtin(Warp& w, const Inst& i, const CallSite& site, std::uint32_t lanes);
    bool builtin_lane(Warp& w, const Inst& i, const CallSite& site, std::uint32_t lane);
    // Returns the number of arguments that the format requests.
    std::uint32_t print(Warp& w, const Inst& i, std::uint32_t lane, std::uint64_t format, std::uint64_t arguments);
    void ret(Warp& w, std::uint32_t lanes);

    const LaunchState& launch_;
    std::uint32_t executor_;
    std::uint32_t thread_count_;
    std::vector<Warp> warps_;
    std::unordered_map<const CompiledFunction*, std::vector<Frame*>> free_frames_;
    std::vector<std::unique_ptr<Frame>> frames_;
    std::vector<Memory> frame_memory_;
    Memory shared_;
    Memory local_;
    std::uint32_t shared_bytes_ = 0;
    Barrier barriers_[16];
    Cluster* cluster_ = nullptr;
    Fault fault_;
    bool paused_ = false;
};

}  // namespace gpupool::softgpu
