// Gives the GPU what it is about to use of the program's pinned memory (host_mirrors.h): the calls that travel for it.
//
// Threads: any. Errors: the driver's.
#pragma once

#include <cstdint>

#include "client/core/session/session.h"
#include "protocol/calls/cuda_api.h"

namespace gpupool::client {

// Pinned memory of `bytes`, whole pages, in a file that the worker maps as well, where the connection can carry one:
// then the GPU uses this very memory. Null: it cannot be had that way. `hint`: where it should lie.
void* allocate_shared(Session& session, CUcontext context, std::uint64_t bytes, void* hint);
// The GPU is about to be given `address`: where it is pinned host memory without a mirror, it gets one. `anywhere`: the
// program will ask where.
CUresult mirror_host_memory(Session& session, std::uint64_t address, bool anywhere = false);
// The same of any address that the GPU is about to be given. Where it cannot have one, the driver says so.
inline void give_to_gpu(Session& session, std::uint64_t address) {
    if (session.memory.may_be_host(address)) {
        mirror_host_memory(session, address);
    }
}
// And of those that memory operations name, of which the driver takes so many in one call, and refuses more.
constexpr unsigned kMaxOperations = 256;
void give_to_gpu(Session& session, const CUstreamBatchMemOpParams* operations, unsigned count);
// The program's memory lies there now: what it had registered there is gone.
void end_registered(Session& session, std::uint64_t address, std::uint64_t bytes);
// No more: the memory is freed or unregistered. What uses it has completed.
CUresult end_mirror(Session& session, std::uint64_t base);
// Sends what the program has changed.
CUresult publish_host_memory(Session& session);

}  // namespace gpupool::client
