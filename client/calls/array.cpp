// Arrays, which the driver allocates. If memory is short, the client releases memory that it does not use, then
// retries. A level of a mipmapped array has one handle, however often the program asks for it.

#include <algorithm>
#include <map>
#include <utility>

#include "client/calls/handlers.h"
#include "client/calls/memory.h"
#include "client/core/dispatch/remote.h"
#include "common/mutex.h"

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

// The levels that the program has asked for.
class Levels {
  public:
    // Held while the server is asked, so that two threads get the same handle.
    CUresult get(CUarray& level, CUmipmappedArray whole, unsigned number) {
        const Lock lock(mutex_);
        const std::pair key(whole, number);
        if (const auto known = levels_.find(key); known != levels_.end()) {
            level = known->second;
            return CUDA_SUCCESS;
        }
        const CUresult result = remote<calls::cuMipmappedArrayGetLevel>(&level, whole, number);
        if (result == CUDA_SUCCESS) {
            levels_[key] = level;
        }
        return result;
    }
    bool contains(CUarray array) {
        const Lock lock(mutex_);
        return std::any_of(levels_.begin(), levels_.end(), [&](const auto& entry) { return entry.second == array; });
    }
    void forget(CUmipmappedArray whole) {
        const Lock lock(mutex_);
        levels_.erase(levels_.lower_bound({whole, 0}), levels_.upper_bound({whole, ~0u}));
    }

  private:
    Mutex mutex_;
    std::map<std::pair<CUmipmappedArray, unsigned>, CUarray> levels_ GP_GUARDED_BY(mutex_);
};

// Never destroyed: threads may still make calls while the program exits.
Levels& levels() {
    static auto& instance = *new Levels;
    return instance;
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

CUresult cuMipmappedArrayGetLevel(CUarray* pLevelArray, CUmipmappedArray hMipmappedArray, unsigned level) {
    if (pLevelArray == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUarray found = nullptr;
    const CUresult result = levels().get(found, hMipmappedArray, level);
    if (result == CUDA_SUCCESS) {
        *pLevelArray = found;
    }
    return result;
}

CUresult cuArrayDestroy(CUarray hArray) {
    // A level ends with its mipmapped array; destroying it alone has no effect.
    return levels().contains(hArray) ? CUDA_SUCCESS : remote<calls::cuArrayDestroy>(hArray);
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray hMipmappedArray) {
    const CUresult result = remote<calls::cuMipmappedArrayDestroy>(hMipmappedArray);
    if (result == CUDA_SUCCESS) {
        levels().forget(hMipmappedArray);
    }
    return result;
}

}  // namespace gpupool::client::entry
