// The state of a JIT linker. Its inputs and log buffers stay in place until it is destroyed.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "server/worker/images/jit_options.h"

namespace gpupool::worker {

struct LinkState {
    CUcontext context = nullptr;
    JitOptions jit;
    CUlinkState driver = nullptr;
    std::vector<std::shared_ptr<const std::vector<std::byte>>> inputs;
    std::vector<unsigned char> linked;  // output of the call under way
    // Used by the dispatcher only:
    std::vector<unsigned char> result;
    bool busy = false;                             // a call is under way
    std::deque<std::function<void()>> calls_next;  // calls that begin when those before them have been answered
};

struct LinkStates {
    std::unordered_map<CUlinkState, std::shared_ptr<LinkState>> by_client;  // by client handle
};

}  // namespace gpupool::worker
