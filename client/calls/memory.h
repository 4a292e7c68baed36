// Waiting for the GPU before memory is freed, and reclaiming memory before an allocation fails.
//
// Ownership: none.
// Threads: any.
// Errors: the driver's.
#pragma once

#include <functional>
#include <vector>

#include "client/core/dispatch/remote.h"

namespace gpupool::client::entry {

// Waits for all work of the context that is not known to be complete. Leaves errors of the work to the next call that
// synchronizes with the context.
void wait_without_errors(Session& s, ContextState& context);

// Waits for all work of `own`, as the driver does before it frees memory, and then for other contexts of the device,
// whose work may use the memory too. `own` may be null. Returns only errors of `own`. Does not wait for other devices,
// which may be waiting for this thread; neither does the driver (docs/driver-facts.md).
CUresult wait_for_users(Session& s, CUdevice device, ContextState* own);

// Frees memory of a graph, which the graph may allocate again, by `free`. Refused if it is not allocated.
CUresult free_of_graph(Session& s, const MemoryRange& range, const std::function<CUresult()>& free);
// Forgets memory that no graph can allocate again.
void forget_graph_memory(Session& s, const std::vector<CUdeviceptr>& addresses);

// Call after `allocate` ran out of memory. Gives back memory of the device that the client holds unused, and retries:
// first empty slabs; then, after the work of `context` (if not null) is complete, what the pool can give back.
CUresult reclaim_and_allocate(CUdevice device, ContextState* context, const std::function<CUresult()>& allocate);

// Calls `allocate`, and if memory is short reclaim_and_allocate().
template <class Allocate>
CUresult allocate_with_reclaim(CUdevice device, ContextState* context, Allocate allocate) {
    const CUresult result = allocate();
    return result == CUDA_ERROR_OUT_OF_MEMORY ? reclaim_and_allocate(device, context, allocate) : result;
}

// The same for a call that takes memory of the current context, if there is one.
template <class Make>
CUresult make_with_reclaim(Make make) {
    ContextState* context = nullptr;
    return usable_context(context) == CUDA_SUCCESS ? allocate_with_reclaim(context->device, context, make) : make();
}

}  // namespace gpupool::client::entry
