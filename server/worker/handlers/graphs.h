// What the handlers of calls on graphs and nodes do first.
//
// Threads: the dispatcher's.
// Errors: the caller's.
#pragma once

#include "server/worker/dispatch/worker.h"

namespace gpupool::worker::handlers {

// Makes the client's graph or node the driver's, and enters the command's context. False if the client has no such
// graph or node.
template <class Handle>
[[nodiscard]] bool find_and_enter(Worker& worker, const Command& command, Handle& handle) {
    if (worker.handles.translate(handle) != CUDA_SUCCESS) {
        return false;
    }
    worker.scheduler.enter(worker.context_of(command));
    return true;
}

}  // namespace gpupool::worker::handlers
