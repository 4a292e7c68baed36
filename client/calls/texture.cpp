// Texture and surface objects. Their numbers are the driver's. Known ones are destroyed without waiting. Linear
// textures may be of host memory.

#include "client/calls/texture.h"

#include <set>
#include <utility>

#include "client/calls/handlers.h"
#include "client/core/dispatch/remote.h"
#include "common/mutex.h"

namespace gpupool::client::entry {
namespace {

// Known objects with the context that they were created in, because numbers are per context.
class Known {
  public:
    void add(CUcontext context, unsigned long long object) {
        const Lock lock(mutex_);
        objects_.emplace(context, object);
    }
    bool take(CUcontext context, unsigned long long object) {
        const Lock lock(mutex_);
        return objects_.erase({context, object}) != 0;
    }
    void forget(CUcontext context) {
        const Lock lock(mutex_);
        std::erase_if(objects_, [&](const auto& one) { return one.first == context; });
    }

  private:
    Mutex mutex_;
    std::set<std::pair<CUcontext, unsigned long long>> objects_ GP_GUARDED_BY(mutex_);
};

// Never destroyed: threads may still make calls while the program exits.
Known& textures() {
    static auto& instance = *new Known;
    return instance;
}
Known& surfaces() {
    static auto& instance = *new Known;
    return instance;
}

CUcontext current() {
    const ContextState* const context = this_thread().current();
    return context == nullptr ? nullptr : context->owner().handle;
}

CUresult note(Known& known, const unsigned long long* object, CUresult result) {
    if (result == CUDA_SUCCESS && object != nullptr) {
        known.add(current(), *object);
    }
    return result;
}

void give_to_gpu(CUdeviceptr address) {
    CUresult ignored = CUDA_SUCCESS;
    if (Session* const s = session(ignored); s != nullptr) {
        client::give_to_gpu(*s, address);
    }
}

// The GPU gets the memory that the resource names, if it is the program's.
void give_to_gpu(const CUDA_RESOURCE_DESC* resource) {
    if (resource != nullptr && resource->resType == CU_RESOURCE_TYPE_LINEAR) {
        give_to_gpu(resource->res.linear.devPtr);
    } else if (resource != nullptr && resource->resType == CU_RESOURCE_TYPE_PITCH2D) {
        give_to_gpu(resource->res.pitch2D.devPtr);
    }
}

template <class Call>
CUresult destroy(Known& known, unsigned long long object) {
    return remote_or_ask<Call>(known.take(current(), object), object);
}

}  // namespace

void forget_textures(CUcontext context) {
    textures().forget(context);
    surfaces().forget(context);
}

CUresult cuTexObjectCreate(CUtexObject* pTexObject, const CUDA_RESOURCE_DESC* pResDesc,
                           const CUDA_TEXTURE_DESC* pTexDesc, const CUDA_RESOURCE_VIEW_DESC* pResViewDesc) {
    give_to_gpu(pResDesc);
    return note(textures(), pTexObject, remote<calls::cuTexObjectCreate>(pTexObject, pResDesc, pTexDesc, pResViewDesc));
}
CUresult cuTexObjectDestroy(CUtexObject texObject) {
    return destroy<calls::cuTexObjectDestroy>(textures(), texObject);
}
CUresult cuSurfObjectCreate(CUsurfObject* pSurfObject, const CUDA_RESOURCE_DESC* pResDesc) {
    return note(surfaces(), pSurfObject, remote<calls::cuSurfObjectCreate>(pSurfObject, pResDesc));
}
CUresult cuSurfObjectDestroy(CUsurfObject surfObject) {
    return destroy<calls::cuSurfObjectDestroy>(surfaces(), surfObject);
}

CUresult cuTexRefSetAddress_v2(std::size_t* ByteOffset, CUtexref hTexRef, CUdeviceptr dptr, std::size_t bytes) {
    give_to_gpu(dptr);
    return remote<calls::cuTexRefSetAddress_v2>(ByteOffset, hTexRef, dptr, bytes);
}
CUresult cuTexRefSetAddress2D_v2(CUtexref hTexRef, const CUDA_ARRAY_DESCRIPTOR* desc, CUdeviceptr dptr,
                                 std::size_t Pitch) {
    give_to_gpu(dptr);
    return remote<calls::cuTexRefSetAddress2D_v2>(hTexRef, desc, dptr, Pitch);
}
CUresult cuTexRefSetAddress2D_v3(CUtexref hTexRef, const CUDA_ARRAY_DESCRIPTOR* desc, CUdeviceptr dptr,
                                 std::size_t Pitch) {
    give_to_gpu(dptr);
    return remote<calls::cuTexRefSetAddress2D_v3>(hTexRef, desc, dptr, Pitch);
}

}  // namespace gpupool::client::entry
