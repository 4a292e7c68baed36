// What a copy's description says about the host's side of it, and about which side an address is on.
#pragma once

#include "client/core/session/session.h"

namespace gpupool::client {

// The host's side of a shaped copy.
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
// Of one that is not empty: more bytes than any memory has, so that sizes made of its numbers would overflow.
bool is_absurd(const CUDA_MEMCPY3D& c);

bool on_device(const Session& s, std::uint64_t address);

// False for what the driver would refuse at once: more than an allocation holds, and what is allocated no more.
bool may_hold(const Session& s, std::uint64_t address, std::uint64_t bytes);
// The same of memory that the client knows; of any other the driver has the last word.
bool surely_holds(const Session& s, std::uint64_t address, std::uint64_t bytes);

// UNIFIED becomes what the address is; the host's pitch need not reach the server.
void resolve_unified(const Session& s, CUDA_MEMCPY3D& c);

// In place of host addresses, names that the server may use (core/graph_hosts.h); and back.
CUresult name_host_memory(CUDA_MEMCPY3D& c);
void restore_host_memory(CUDA_MEMCPY3D& c);

}  // namespace gpupool::client
