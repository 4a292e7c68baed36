// Which context the memory that is registered in a green context belongs to: its device's primary context. The
// registration outlives the green context.
//
// Threads: any.
#pragma once

#include <unordered_map>

#include "common/mutex.h"
#include "protocol/calls/cuda_api.h"

namespace gpupool::worker {

class ContextOwners {
  public:
    void add(CUcontext green, CUcontext primary) {
        const Lock lock(mutex_);
        owners_[green] = primary;
    }
    void remove(CUcontext green) {
        const Lock lock(mutex_);
        owners_.erase(green);
    }
    // Any other context owns what is registered in it.
    [[nodiscard]] CUcontext of(CUcontext context) const {
        const Lock lock(mutex_);
        const auto owner = owners_.find(context);
        return owner == owners_.end() ? context : owner->second;
    }

  private:
    mutable Mutex mutex_;
    std::unordered_map<CUcontext, CUcontext> owners_ GP_GUARDED_BY(mutex_);  // the driver's handles
};

}  // namespace gpupool::worker
