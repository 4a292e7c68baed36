// What the handlers of calls on graphs and nodes do first.
//
// Threads: the dispatcher's.
// Errors: the caller's.
#pragma once

#include "server/worker/dispatch/views.h"

namespace gpupool::worker::handlers {

// Makes the client's graph or node the driver's, and enters the command's context. False if the client has no such
// graph or node.
template <class Handle>
[[nodiscard]] bool find_and_enter(SessionView& session, const Command& command, Handle& handle) {
    if (session.handles.translate(handle) != CUDA_SUCCESS) {
        return false;
    }
    session.scheduler.enter(session.context_of(command));
    return true;
}

}  // namespace gpupool::worker::handlers
