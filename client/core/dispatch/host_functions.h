// Runs the application's host functions on a thread of their own, one at a time, in the order in which the worker
// reports them due. CUDA calls inside a host function return CUDA_ERROR_NOT_PERMITTED.
//
// The worker's messages are checked: a ticket that is unknown or already due is ignored, and at most kMaxGraphFunctions
// functions of graphs may be pending.
//
// Ownership: owns the submitted functions until they have run or are cancelled.
// Threads: submit() and cancel() any; due() and run_when_due() only the receiving thread.
// Errors: a false result of due() or run_when_due() means that the worker sent an invalid ticket.
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
    // Called with the status of the stream. After an error, functions of cuLaunchHostFunc return without calling the
    // application.
    using Function = std::function<void(CUresult status)>;
    static constexpr std::size_t kMaxGraphFunctions = 64u << 10;

    // `done` reports to the worker that the function of a ticket has run.
    void start(std::function<void(std::uint64_t ticket)> done);

    std::uint64_t submit(Function function);
    void cancel(std::uint64_t ticket);
    // The function of `ticket` is due. False if the ticket was never given out or is due already.
    bool due(std::uint64_t ticket, CUresult status);
    // Queues a graph's function under a ticket that the worker chose; it is due at once. False if the ticket is pending
    // already or too many functions are.
    bool run_when_due(std::uint64_t ticket, Function function);
    // Has any function been submitted that has not finished?
    [[nodiscard]] bool any_pending() const;
    // How many functions are due and have not started.
    [[nodiscard]] std::size_t waiting() const;
    void end();

  private:
    void run();
    void start_thread() GP_REQUIRES(mutex_);

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
    // At most one per entry; entries may have been cancelled.
    std::deque<std::pair<std::uint64_t, CUresult>> due_ GP_GUARDED_BY(mutex_);
    std::size_t graph_functions_ GP_GUARDED_BY(mutex_) = 0;
    std::function<void(std::uint64_t)> done_;
    bool started_ GP_GUARDED_BY(mutex_) = false, ended_ GP_GUARDED_BY(mutex_) = false;
};

}  // namespace gpupool::client
