// Driver calls that may wait for the GPU: to load and unload, to free, to make room for a kernel's local memory, to
// launch a graph of thousands of nodes. They are made on helper threads; but while one waits, the driver keeps out most
// others that come to it (measured: docs/driver-facts.md), the dispatcher as well.
//
// Now the GPU itself may wait for the dispatcher: for the word of a host function, a graph's turn, a change of mirrored
// memory. So as long as there may be such a wait, the dispatcher stays out of the driver while one of these calls is
// under way (Worker::stays_out()): commands are set aside, and only what needs no driver goes on.
//
// What is `done` afterwards runs even while other such calls are under way: it does not enter the driver, or by
// Worker::in_driver().
//
// Threads: the dispatcher's. Errors: none.
#pragma once

#include <cstddef>
#include <functional>
#include <utility>

#include "server/worker/helpers.h"

namespace gpupool::worker {

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
    // The same for a call that changes what other commands would use: nothing else enters the driver until `done` has
    // run.
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

}  // namespace gpupool::worker
