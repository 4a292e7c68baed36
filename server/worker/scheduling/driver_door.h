// May the dispatcher call the driver now? See waiting_calls.h.
//
// Threads: the dispatcher's.
#pragma once

#include "server/worker/graphs/graph_steps.h"
#include "server/worker/memory/host_mirrors.h"
#include "server/worker/scheduling/waiting_calls.h"
#include "server/worker/session/objects.h"

namespace gpupool::worker {

class DriverDoor {
  public:
    DriverDoor(const WaitingCalls& waiting_calls, const HostFunctions& host_functions, const GraphSteps& graph_steps,
               const HostMirrors& host_mirrors)
        : waiting_calls_(waiting_calls),
          host_functions_(host_functions),
          graph_steps_(graph_steps),
          host_mirrors_(host_mirrors) {}

    // May the GPU be waiting for something that only the dispatcher can bring about?
    [[nodiscard]] bool gpu_may_wait_for_us() const {
        return !host_functions_.empty() || graph_steps_.running() || !host_mirrors_.empty();
    }
    // Must the dispatcher make no driver call now?
    [[nodiscard]] bool closed() const {
        return waiting_calls_.any() && (gpu_may_wait_for_us() || waiting_calls_.any_alone());
    }

  private:
    const WaitingCalls& waiting_calls_;
    const HostFunctions& host_functions_;
    const GraphSteps& graph_steps_;
    const HostMirrors& host_mirrors_;
};

}  // namespace gpupool::worker
