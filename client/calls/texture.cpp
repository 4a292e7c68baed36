// Texture and surface objects: the driver's numbers. Those that are known to be there are destroyed without waiting.

#include <mutex>
#include <unordered_set>

#include "client/calls/handlers.h"
#include "client/core/remote.h"

namespace gpupool::client::entry {
namespace {

class Known {
  public:
    void add(unsigned long long object) {
        const std::lock_guard lock(mutex_);
        objects_.insert(object);
    }
    bool take(unsigned long long object) {
        const std::lock_guard lock(mutex_);
        return objects_.erase(object) != 0;
    }

  private:
    std::mutex mutex_;
    std::unordered_set<unsigned long long> objects_;
};

// Never destroyed: threads may still call while the program ends.
Known& textures() {
    static auto& instance = *new Known;
    return instance;
}
Known& surfaces() {
    static auto& instance = *new Known;
    return instance;
}

CUresult note(Known& known, const unsigned long long* object, CUresult result) {
    if (result == CUDA_SUCCESS && object != nullptr) {
        known.add(*object);
    }
    return result;
}

template <class Call>
CUresult destroy(Known& known, unsigned long long object) {
    return remote_or_ask<Call>(known.take(object), object);
}

}  // namespace

CUresult cuTexObjectCreate(CUtexObject* pTexObject, const CUDA_RESOURCE_DESC* pResDesc,
                           const CUDA_TEXTURE_DESC* pTexDesc, const CUDA_RESOURCE_VIEW_DESC* pResViewDesc) {
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

}  // namespace gpupool::client::entry
