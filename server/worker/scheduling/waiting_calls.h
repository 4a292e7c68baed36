// Driver calls that may wait for the GPU: to load and unload, to free, to make room for a kernel's local memory, to
// launch a graph of thousands of nodes. They are made on helper threads; but while one waits, the driver keeps out most
// others that come to it (measured: docs/driver-facts.md), the dispatcher as well.
//
// Now the GPU itself may wait for the dispatcher: for the word of a host function, a graph's turn, a change of mirrored
// memory. So as long as there may be such a wait, the dispatcher stays out of the driver while one of these calls is
// under way (Worker::driver_closed()): commands are set aside, and only what needs no driver goes on.
//
// What is `done` afterwards runs even while other such calls are under way: it does not enter the driver, or by
// Worker::in_driver().
//
// Threads: the dispatcher's. Errors: none.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "server/driver/api.h"
#include "server/worker/dispatch/helpers.h"

namespace gpupool::worker {

// `call` with the driver's context current, by any thread.
template <class Call>
CUresult in_context(const driver::Api& api, CUcontext context, const Call& call) {
    const CUresult result = driver::call(api.cuCtxSetCurrent, context);
    return result == CUDA_SUCCESS ? call() : result;
}

class WaitingCalls {
  public:
    explicit WaitingCalls(Helpers& helpers) : helpers_(helpers) {}

    // `call` on a helper thread, then `done` here.
    void run(std::function<void()> call, std::function<void()> done) {
        ++under_way_;
        helpers_.run(std::move(call), [this, then = std::move(done)] {
            --under_way_;
            then();
        });
    }
    // The same for a call that changes what other commands would use: none of them is issued until `done` has run. Only
    // questions are asked meanwhile (SetAside::lets_pass, Scheduler::poll).
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

// One of them that an operation waits for: it looks for the result when it has its turn.
struct WaitingCall {
    std::optional<CUresult> result;

    // In the driver's context. `api` outlives the call.
    static std::shared_ptr<WaitingCall> run(WaitingCalls& calls, const driver::Api& api, CUcontext context,
                                            std::function<CUresult()> call) {
        const auto waiting = std::make_shared<WaitingCall>();
        const auto result = std::make_shared<CUresult>(CUDA_SUCCESS);
        calls.run([&api, context, call = std::move(call), result] { *result = in_context(api, context, call); },
                  [waiting, result] { waiting->result = *result; });
        return waiting;
    }
};

}  // namespace gpupool::worker
