// Arrays, which the driver allocates. If memory is short, the client releases memory that it does not use, then
// retries.

#include "client/calls/handlers.h"
#include "client/calls/memory.h"
#include "client/core/dispatch/remote.h"

namespace gpupool::client::entry {
namespace {

template <class Call, class... Arguments>
CUresult create(Arguments... arguments) {
    ContextState* context = nullptr;
    const CUresult result = usable_context(context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    return allocate_with_reclaim(context->device, context, [&] { return remote<Call>(arguments...); });
}

}  // namespace

CUresult cuArrayCreate_v2(CUarray* pHandle, const CUDA_ARRAY_DESCRIPTOR* pAllocateArray) {
    return create<calls::cuArrayCreate_v2>(pHandle, pAllocateArray);
}

CUresult cuArray3DCreate_v2(CUarray* pHandle, const CUDA_ARRAY3D_DESCRIPTOR* pAllocateArray) {
    return create<calls::cuArray3DCreate_v2>(pHandle, pAllocateArray);
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray* pHandle, const CUDA_ARRAY3D_DESCRIPTOR* pMipmappedArrayDesc,
                                unsigned numMipmapLevels) {
    return create<calls::cuMipmappedArrayCreate>(pHandle, pMipmappedArrayDesc, numMipmapLevels);
}

}  // namespace gpupool::client::entry
