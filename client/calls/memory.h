// What allocating and freeing memory ask of the GPU.
#pragma once

#include <functional>

#include "client/core/contexts.h"

namespace gpupool::client::entry {

// Natively, who frees memory waits for all work of its context. Where all is known to be complete, there is nothing to
// wait for.
CUresult wait_for_device(ContextState* context);

// `allocate`, and once more where memory is short and the client has some of the device's that nothing uses: committed
// slabs, and what the pool may give back when the work of `context`, null for none, is complete.
CUresult allocate_with_reclaim(CUdevice device, ContextState* context, const std::function<CUresult()>& allocate);

}  // namespace gpupool::client::entry
