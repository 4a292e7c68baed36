// Gives the GPU what it is about to use of the program's pinned memory (host_mirrors.h): the calls that travel for it.
//
// Threads: any. Errors: the driver's.
#pragma once

#include <cstdint>

#include "protocol/calls/cuda_api.h"

namespace gpupool::client {

class Session;

// The GPU is about to be given `address`: where it is pinned host memory without a mirror, it gets one. `anywhere`: the
// program will ask where.
CUresult mirror_host_memory(Session& session, std::uint64_t address, bool anywhere = false);
// No more: the memory is freed or unregistered. What uses it has completed.
CUresult end_mirror(Session& session, std::uint64_t base);
// Sends what the program has changed.
CUresult publish_host_memory(Session& session);

}  // namespace gpupool::client
