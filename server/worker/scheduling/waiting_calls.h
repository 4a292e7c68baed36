// Driver calls that may wait for the GPU: loading, unloading, freeing, making room for a kernel's local memory,
// launching a graph of thousands of nodes. Helper threads make them. But while one of them waits, most other calls
// block in the driver too (measured: docs/driver-facts.md), also those of the dispatcher.
//
// The GPU itself may be waiting for the dispatcher: for a host function to return, for a graph's client step, for a
// change of mirrored memory. While such a wait is possible, a blocked dispatcher would be a deadlock. So the driver is
// closed as long as one of these calls is under way (DriverDoor::closed()): the gate queues everything, and serves
// only the commands that need no driver call (Gate::passes).
//
// `done` may run while other such calls are still under way, so it must not call the driver other than through
// Gate::when_open().
//
// Threads: the dispatcher's.
// Errors: none.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "server/driver/api.h"
#include "server/worker/dispatch/helpers.h"

namespace gpupool::worker {

// Runs `call` with the driver's context current. Any thread.
template <class Call>
CUresult in_context(const driver::Api& api, CUcontext context, const Call& call) {
    const CUresult result = driver::call(api.cuCtxSetCurrent, context);
    return result == CUDA_SUCCESS ? call() : result;
}

class WaitingCalls {
  public:
    explicit WaitingCalls(Helpers& helpers) : helpers_(helpers) {}

    // Runs `call` on a helper thread, then `done` on the dispatcher.
    void run(std::function<void()> call, std::function<void()> done) {
        ++under_way_;
        helpers_.run(std::move(call), [this, then = std::move(done)] {
            --under_way_;
            then();
        });
    }
    // The same for a call that changes what other commands would use: no other command is issued until `done` has run.
    // Only queries are made meanwhile (Gate::passes, Scheduler::poll).
    void run_alone(std::function<void()> call, std::function<void()> done) {
        ++alone_;
        run(std::move(call), [this, then = std::move(done)] {
            --alone_;
            then();
        });
    }
    [[nodiscard]] bool any() const { return under_way_ != 0; }
    [[nodiscard]] bool any_alone() const { return alone_ != 0; }

  private:
    Helpers& helpers_;
    std::size_t under_way_ = 0, alone_ = 0;
};

// A waiting call of a queued entry, which polls `result` when it is advanced.
struct WaitingCall {
    std::optional<CUresult> result;

    // Runs `call` in the driver's context. `api` outlives the call.
    static std::shared_ptr<WaitingCall> run(WaitingCalls& calls, const driver::Api& api, CUcontext context,
                                            std::function<CUresult()> call) {
        auto waiting = std::make_shared<WaitingCall>();
        const auto result = std::make_shared<CUresult>(CUDA_SUCCESS);
        calls.run([&api, context, call = std::move(call), result] { *result = in_context(api, context, call); },
                  [waiting, result] { waiting->result = *result; });
        return waiting;
    }
};

}  // namespace gpupool::worker
