// Making and ending contexts: on a helper thread, with the dispatcher's state kept in step.
//
// Threads: the dispatcher's.
// Errors: the driver's, in the answer to the command.
#pragma once

#include <functional>

#include "server/worker/dispatch/views.h"

namespace gpupool::worker::handlers {

struct ContextMaking {
    CUcontext client = nullptr;  // the client's handle
    CUdevice device = 0;
    bool primary = false, green = false;
    std::function<CUresult(CUcontext*)> make;  // runs on a helper, and leaves the thread's current context as it was
    std::function<void(ContextState&)> known = {};  // called with the new context before the command is answered
};

// Abandons everything of the context: calls that wait for its work return an error. Returns how many captures began
// there, which go on until the driver has ended the context.
std::size_t forget_context(ContextView& session, ContextState& context);
// Makes a context and answers the command.
void make_context(ContextView& session, const Command& command, ContextMaking making);
// Abandons the context's work, calls `end` on a helper when nothing uses the context any more, and answers the command.
void end_context(ContextView& session, const Command& command, CUcontext client, std::function<CUresult()> end);

}  // namespace gpupool::worker::handlers
