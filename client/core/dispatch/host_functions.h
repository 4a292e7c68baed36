// The application's host functions: run one at a time, in the order in which the worker says that their turn has come,
// on a thread of their own; CUDA calls inside give CUDA_ERROR_NOT_PERMITTED.
//
// What the worker says is checked: a ticket that is not known, or whose turn has come already, is dropped, and a worker
// may have no more than kMaxGraphFunctions of graphs waiting here.
//
// Threads: submit() any; due() and run_when_due() the receiving thread's.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory_resource>
#include <unordered_map>

#include "common/mutex.h"
#include "protocol/calls/cuda_api.h"

namespace gpupool::client {

class HostFunctions {
  public:
    // Runs with the status that the stream had; `cuLaunchHostFunc`'s are not run after an error.
    using Function = std::function<void(CUresult status)>;
    static constexpr std::size_t kMaxGraphFunctions = 64u << 10;

    // `done` tells the worker.
    void start(std::function<void(std::uint64_t ticket)> done);

    std::uint64_t submit(Function function);
    void cancel(std::uint64_t ticket);
    // False: it was never to have a turn, or has it already.
    bool due(std::uint64_t ticket, CUresult status);
    // A graph's: the worker has made the ticket, and its turn has come. False when the ticket waits here already, or
    // too many do.
    bool run_when_due(std::uint64_t ticket, Function function);
    // Has one been submitted that has not run yet?
    [[nodiscard]] bool any_pending() const;
    // Whose turn has come and that have not begun.
    [[nodiscard]] std::size_t waiting() const;
    void end();

  private:
    void run();
    void start_thread() GP_REQUIRES(mutex_);  // with the lock held

    struct Entry {
        Function function;
        bool of_graph = false;
        bool due = false;
    };
    mutable Mutex mutex_;
    Condition changed_;
    std::uint64_t next_ GP_GUARDED_BY(mutex_) = 1;
    std::pmr::unsynchronized_pool_resource nodes_ GP_GUARDED_BY(mutex_);
    std::pmr::unordered_map<std::uint64_t, Entry> entries_ GP_GUARDED_BY(mutex_){&nodes_};
    // Each of a different entry, but for cancelled ones.
    std::deque<std::pair<std::uint64_t, CUresult>> due_ GP_GUARDED_BY(mutex_);
    std::size_t graph_functions_ GP_GUARDED_BY(mutex_) = 0;
    std::function<void(std::uint64_t)> done_;
    bool started_ GP_GUARDED_BY(mutex_) = false, ended_ GP_GUARDED_BY(mutex_) = false;
};

}  // namespace gpupool::client
