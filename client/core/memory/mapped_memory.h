// Makes the program's pinned memory available to the GPU (host_mirrors.h), by calls to the worker.
//
// Ownership: none.
// Threads: any.
// Errors: the driver's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "client/core/session/session.h"
#include "protocol/calls/cuda_api.h"

namespace gpupool::client {

// Allocates pinned memory of `bytes`, whole pages, in a memfd that the worker maps as well, so that the GPU uses this
// very memory. Null if the connection cannot pass a descriptor or the worker refuses. `hint`: the preferred address.
void* allocate_shared(Session& session, CUcontext context, std::uint64_t bytes, void* hint);
// Call before the GPU is given `address`. If that is pinned host memory without a mirror, makes one. `anywhere`: the
// mirror may have another address, because the program will ask for it.
CUresult mirror_host_memory(Session& session, std::uint64_t address, bool anywhere = false);
// The same for an address of any kind. Ignores errors: without a mirror the driver's own call will fail.
inline void give_to_gpu(Session& session, std::uint64_t address) {
    if (session.memory.may_be_host(address)) {
        mirror_host_memory(session, address);
    }
}
// The same for addresses in data that is copied to the GPU's memory at `destination`, where a kernel may find them.
// Data of more than kMaxSearchedBytes is not searched: the search would take as long as the copy.
void give_found_to_gpu(Session& session, std::span<const std::byte> data, std::uint64_t destination);
// The same for the addresses in memory operations. The driver accepts at most kMaxOperations in one call.
constexpr unsigned kMaxOperations = 256;
void give_to_gpu(Session& session, const CUstreamBatchMemOpParams* operations, unsigned count);
// New memory of the program has been mapped there: forget what was registered in that range.
void end_registered(Session& session, std::uint64_t address, std::uint64_t bytes);
// Forgets memory that is freed or unregistered, and its mirror. Work that uses it must be complete. False if there is
// no such memory.
bool forget_host_memory(Session& session, std::uint64_t base);
// Removes the mirror, if any, of memory that has been forgotten.
CUresult end_mirror(Session& session, std::uint64_t base);
// Sends the program's changes of mirrored memory. Memory whose address is in what has changed gets a mirror as well.
CUresult publish_host_memory(Session& session);
// The same without new mirrors, for threads that may not make CUDA calls: the mirror poller's and the host functions'.
// The next publish_host_memory() makes them.
CUresult send_host_changes(Session& session);

}  // namespace gpupool::client
