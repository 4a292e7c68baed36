// Changes of functions' attributes that are deferred until queued work has been issued.
//
// Threads: the dispatcher's only. Bounded by the number of queued commands, which are charged to the session.
#pragma once

#include <map>
#include <tuple>

#include "protocol/calls/cuda_api.h"

namespace gpupool::worker {

class FunctionChanges {
  public:
    using Name = std::tuple<CUfunction, CUfunction_attribute, CUdevice>;  // the driver's function or kernel

    // Defers a change. It replaces earlier deferred changes of the same attribute.
    void put_off(const Name& name) {
        PutOff& put_off = put_off_[name];
        ++put_off.count;
        put_off.stand = true;
    }

    // A change was made at once: deferred changes from before it must not undo it.
    void overtake(const Name& name) {
        if (const auto found = put_off_.find(name); found != put_off_.end()) {
            found->second.stand = false;
        }
    }

    // The earliest deferred change is due. Is it to be made? Not if a later change replaces it.
    bool stands(const Name& name) {
        const auto found = put_off_.find(name);
        if (found == put_off_.end()) {
            return false;
        }
        const bool last = --found->second.count == 0;
        const bool made = last && found->second.stand;
        if (last) {
            put_off_.erase(found);
        }
        return made;
    }

  private:
    struct PutOff {
        std::size_t count = 0;
        bool stand = false;  // no change was made at once since
    };
    std::map<Name, PutOff> put_off_;
};

}  // namespace gpupool::worker
