// What freeing memory asks of the GPU.
#pragma once

#include "client/core/contexts.h"

namespace gpupool::client::entry {

// Natively, who frees memory waits for all work of its context. Where all is known to be complete, there is nothing to
// wait for.
CUresult wait_for_device(ContextState* context);

}  // namespace gpupool::client::entry
