// Looking up contexts and green contexts by the program's handles.
//
// Ownership: none.
// Threads: any thread of the application.
// Errors: the driver's.
#pragma once

#include "client/core/session/contexts.h"

namespace gpupool::client::entry {

// Sets `context` to the live context that the handle names; that of a CUcontext may be a green context too.
CUresult find_context(CUcontext handle, ContextState*& context);
CUresult find_context(CUgreenCtx handle, ContextState*& context);

// Retains a device's primary context for a green context, or releases it. The last release ends the primary context.
CUresult retain_for_green(CUdevice device);
CUresult release_of_green(CUdevice device);

}  // namespace gpupool::client::entry
