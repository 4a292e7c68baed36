// Changes of functions' attributes that are made only when held work has been issued.
//
// Threads: the dispatcher's only. As many are put off as commands are held, which are charged to the session.
#pragma once

#include <map>
#include <tuple>

#include "protocol/calls/cuda_api.h"

namespace gpupool::worker {

class FunctionChanges {
  public:
    using Name = std::tuple<CUfunction, CUfunction_attribute, CUdevice>;  // the driver's function or kernel

    // One more, which takes the place of earlier ones.
    void put_off(const Name& name) {
        PutOff& put_off = put_off_[name];
        ++put_off.count;
        put_off.stand = true;
    }

    // Another was made at once: those that were put off before it are not to undo it.
    void overtake(const Name& name) {
        if (const auto found = put_off_.find(name); found != put_off_.end()) {
            found->second.stand = false;
        }
    }

    // It is the turn of the earliest of them. Is it to be made? Not if a later one takes its place.
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
        bool stand = false;  // was none made at once since?
    };
    std::map<Name, PutOff> put_off_;
};

}  // namespace gpupool::worker
