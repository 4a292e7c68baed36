// Helpers for descriptions of copies: the host's end of a 2D or 3D copy, and the side that an address is on.
//
// Ownership: none.
// Threads: any.
// Errors: the driver's.
#pragma once

#include "client/core/session/session.h"

namespace gpupool::client {

// The host's end of a 2D or 3D copy.
struct HostSide {
    char* base;
    std::size_t x, y, z, pitch, height;
    [[nodiscard]] char* row(std::size_t r, std::size_t slice) const {
        return base + ((z + slice) * height + y + r) * pitch + x;
    }
};

HostSide source_of(const CUDA_MEMCPY3D& c);
HostSide destination_of(const CUDA_MEMCPY3D& c);

bool is_empty(const CUDA_MEMCPY3D& c);
// For a copy that is not empty: is it larger than any memory, so that computing its size could overflow?
bool is_too_large(const CUDA_MEMCPY3D& c);

bool on_device(const Session& s, std::uint64_t address);

// False if the driver would refuse at once: the range exceeds its allocation, or lies in the window where nothing is
// allocated.
bool may_hold(const Session& s, std::uint64_t address, std::uint64_t bytes);
// The same for both sides of a copy that is not empty.
bool may_hold(const Session& s, const CUDA_MEMCPY3D& c);
// The same, but false if the client does not know the memory, so that only the driver can tell.
bool surely_holds(const Session& s, std::uint64_t address, std::uint64_t bytes);

// Is it memory of a graph that is not allocated at the moment? Only the driver knows what may be done with it.
bool is_idle(const Session& s, CUdeviceptr address);

// Is it an address of host memory that CUDA knows: allocated, registered, or where the GPU sees such memory?
bool is_gpus_host_memory(const Session& s, CUdeviceptr address);

// Must a synchronous copy or memset of the memory at this address be complete when the call returns? True for host
// memory, which the program may read without a call, and for memory with CU_POINTER_ATTRIBUTE_SYNC_MEMOPS.
bool is_seen_at_once(const Session& s, CUdeviceptr address);

// Replaces the memory type UNIFIED by host or device. The same for pinned memory that was declared as device memory.
void resolve_unified(const Session& s, CUDA_MEMCPY3D& c);

// Replaces the host addresses of a graph's copy by names that the server may use (client/core/graphs/graph_hosts.h).
// restore_host_memory() replaces names by addresses.
CUresult name_host_memory(CUDA_MEMCPY3D& c);
void restore_host_memory(CUDA_MEMCPY3D& c);

}  // namespace gpupool::client
