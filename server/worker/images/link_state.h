// A JIT linker's state: its inputs and log buffers stay in place until it is destroyed.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "server/worker/images/jit_options.h"

namespace gpupool::worker {

struct LinkState {
    CUcontext context = nullptr;
    JitOptions jit;
    CUlinkState driver = nullptr;
    std::vector<std::shared_ptr<const std::vector<std::byte>>> inputs;
    std::vector<unsigned char> linked;  // what the call under way has made
    // The dispatcher's:
    std::vector<unsigned char> result;
    bool busy = false;                             // a call is under way
    std::deque<std::function<void()>> calls_next;  // that begin when those before have been answered
};

}  // namespace gpupool::worker
