// Green contexts, and the resources of devices that they are made of. The client knows a green context as a context
// whose parent is the device's primary one.

#include <algorithm>
#include <vector>

#include "client/calls/contexts.h"
#include "client/calls/handlers.h"
#include "client/calls/store.h"
#include "client/core/dispatch/remote.h"
#include "protocol/export_tables/registry.h"

namespace gpupool::client::entry {
namespace {

// `handle`: of a context or a green context.
template <class Handle>
CUresult get_resource(Handle handle, CUdevResource* resource, CUdevResourceType type) {
    ContextState* context = nullptr;
    const CUresult result = find_context(handle, context);
    return result != CUDA_SUCCESS ? result : remote<calls::cuCtxGetDevResource>(context->handle, resource, type);
}

}  // namespace

CUresult cuCtxGetDevResource(CUcontext hCtx, CUdevResource* resource, CUdevResourceType type) {
    return get_resource(hCtx, resource, type);
}
CUresult cuGreenCtxGetDevResource(CUgreenCtx hCtx, CUdevResource* resource, CUdevResourceType type) {
    return get_resource(hCtx, resource, type);
}

CUresult cuDevSmResourceSplitByCount(CUdevResource* result, unsigned* nbGroups, const CUdevResource* input,
                                     CUdevResource* remaining, unsigned useFlags, unsigned minCount) {
    constexpr unsigned kMaxGroups = 4096;  // more than a device has multiprocessors
    CUresult error = CUDA_SUCCESS;
    if (session(error) == nullptr) {
        return error;
    }
    if (nbGroups == nullptr || input == nullptr || (result != nullptr && *nbGroups == 0)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const unsigned capacity = result == nullptr ? 0 : std::min(*nbGroups, kMaxGroups);
    std::vector<CUdevResource> groups(capacity);
    unsigned count = 0;
    CUdevResource rest{};
    error = remote<calls::gpSmResourceSplit>(result == nullptr ? nullptr : groups.data(), capacity, &count, input,
                                             remaining == nullptr ? nullptr : &rest, useFlags, minCount);
    if (error != CUDA_SUCCESS) {
        return error;
    }
    std::copy_n(groups.begin(), std::min(count, capacity), result);
    if (remaining != nullptr) {
        *remaining = rest;
    }
    *nbGroups = count;
    return CUDA_SUCCESS;
}

CUresult cuDevResourceGenerateDesc(CUdevResourceDesc* phDesc, CUdevResource* resources, unsigned nbResources) {
    return phDesc == nullptr || resources == nullptr || nbResources == 0
               ? CUDA_ERROR_INVALID_VALUE
               : remote<calls::cuDevResourceGenerateDesc>(phDesc, resources, nbResources);
}

CUresult cuGreenCtxCreate(CUgreenCtx* phCtx, CUdevResourceDesc desc, CUdevice dev, unsigned flags) {
    CUresult result = CUDA_SUCCESS;
    Session* const s = session(result);
    if (s == nullptr) {
        return result;
    }
    if (phCtx == nullptr || flags != CU_GREEN_CTX_DEFAULT_STREAM) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (result = retain_for_green(dev); result != CUDA_SUCCESS) {
        return result;
    }
    ContextState& context = s->contexts.add_green(s->contexts.primary(dev));
    CUcontext handle = context.handle;
    result = remote<calls::gpGreenContextCreate>(&handle, desc, dev, flags);
    if (result != CUDA_SUCCESS) {
        release_of_green(dev);
        return result;
    }
    CUdevResource own{};
    if (remote<calls::cuCtxGetDevResource>(handle, &own, CU_DEV_RESOURCE_TYPE_SM) == CUDA_SUCCESS) {
        context.multiprocessors = own.sm.smCount;
    }
    context.live = true;
    *phCtx = codec::from_wire<CUgreenCtx>(codec::to_wire(handle));
    return CUDA_SUCCESS;
}

// The work of the context's streams goes on, as the primary context's.
CUresult cuGreenCtxDestroy(CUgreenCtx hCtx) {
    ContextState* context = nullptr;
    if (const CUresult result = find_context(hCtx, context); result != CUDA_SUCCESS) {
        return result;
    }
    if (!context->live.exchange(false)) {
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    }
    Session& s = this_session();
    export_tables::context_ends(context->handle);
    const CUresult result = remote<calls::gpGreenContextDestroy>(context->handle);
    s.captures.ended(*context);
    s.pools[static_cast<std::size_t>(context->device)]->move(*context, s.contexts.primary(context->device));
    const CUresult released = release_of_green(context->device);
    return result != CUDA_SUCCESS ? result : released;
}

CUresult cuCtxFromGreenCtx(CUcontext* pContext, CUgreenCtx hCtx) {
    ContextState* context = nullptr;
    const CUresult result = find_context(hCtx, context);
    return result != CUDA_SUCCESS ? result : store(pContext, context->handle);
}

CUresult cuGreenCtxGetId(CUgreenCtx greenCtx, unsigned long long* greenCtxId) {
    ContextState* context = nullptr;
    const CUresult result = find_context(greenCtx, context);
    return result != CUDA_SUCCESS ? result : store(greenCtxId, static_cast<unsigned long long>(context->id));
}

}  // namespace gpupool::client::entry
