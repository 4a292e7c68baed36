// A JIT linker's state: its inputs and log buffers stay in place until it is destroyed.
#pragma once

#include <memory>
#include <vector>

#include "server/worker/jit_options.h"

namespace gpupool::worker {

struct LinkState {
    CUcontext context = nullptr;
    JitOptions jit;
    CUlinkState driver = nullptr;
    std::vector<std::shared_ptr<const std::vector<std::byte>>> inputs;
    std::vector<unsigned char> result;
};

}  // namespace gpupool::worker
