// How much device memory the code of an image takes when the driver has loaded it: computed from its sections (cubin)
// or its variables (PTX), before it is loaded.
//
// The driver loads variables and constants when it loads a module, and the code of a kernel when the kernel is first
// used. It takes memory in pages of 2 MiB; small variables and code share them. The code that it compiles from PTX is
// not counted.
//
// The driver writes out what kernels printed only when something is synchronized. A session none of whose images may
// print is spared that cost (scheduler.h).
//
// Code that prints or fails assertions, and code that allocates on the device, needs memory of the driver besides its
// own (server/worker/memory/code_memory.h).
//
// Ownership: values. Threads: any, but not the dispatcher: it may have to decompress the image. Errors: none; an image
// that cannot be read takes nothing.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>

#include "common/fatbin/image.h"

namespace gpupool::worker {

struct ImageMemory {
    std::uint64_t data_bytes = 0;                               // variables and constants
    std::unordered_map<std::string, std::uint32_t> code_bytes;  // by kernel
    bool prints = false;                                        // printf, assert
    bool allocates = false;                                     // malloc, new
    bool may_print = false;                                     // it mentions printing, or cannot be read
};

// `image`: in the form of Images, possibly several containers one after the other.
ImageMemory image_memory(fatbin::Bytes image);

}  // namespace gpupool::worker
