// Looking up contexts of both kinds by the program's handles.
//
// Ownership: none.
// Threads: any thread of the application.
// Errors: the driver's.
#pragma once

#include "client/core/session/contexts.h"

namespace gpupool::client::entry {

// Sets `context` to a live context. Null is none.
CUresult find_context(CUcontext handle, ContextState*& context);
// The same for a green context.
CUresult find_green(CUgreenCtx handle, ContextState*& context);

// Retains a device's primary context for a green context, or releases it. The last release ends the primary context.
CUresult retain_for_green(CUdevice device);
CUresult release_of_green(CUdevice device);

}  // namespace gpupool::client::entry
