// What allocating and freeing memory ask of the GPU.
#pragma once

#include <functional>

#include "client/core/dispatch/remote.h"

namespace gpupool::client::entry {

// Natively, who frees memory waits for all work of its context. Where all is known to be complete, there is nothing to
// wait for.
CUresult wait_for_device(ContextState* context);

// The same without taking the failures of what is waited for: those are for whoever synchronizes with the context.
void wait_without_errors(Session& s, ContextState& context);

// wait_for_device(), and, as natively, for the other contexts of its device, whose work may use it as well. The error
// is its own's. Not for other devices, which may be waiting for this thread: natively nobody waits for them either
// (docs/driver-facts.md).
CUresult wait_for_users(Session& s, ContextState* own);

// Memory was short. `allocate` once more, where the client has some of the device's that nothing uses: committed slabs,
// and what the pool may give back when the work of `context`, null for none, is complete.
CUresult reclaim_and_allocate(CUdevice device, ContextState* context, const std::function<CUresult()>& allocate);

// `allocate`, and the above where it has to be.
template <class Allocate>
CUresult allocate_with_reclaim(CUdevice device, ContextState* context, Allocate allocate) {
    const CUresult result = allocate();
    return result == CUDA_ERROR_OUT_OF_MEMORY ? reclaim_and_allocate(device, context, allocate) : result;
}

// The same of what takes memory of the current context, if there is one.
template <class Make>
CUresult make_with_reclaim(Make make) {
    ContextState* context = nullptr;
    return usable_context(context) == CUDA_SUCCESS ? allocate_with_reclaim(context->device, context, make) : make();
}

}  // namespace gpupool::client::entry
