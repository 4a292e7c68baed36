// The device memory that a session holds.
//
// Threads: the dispatcher's alone.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "server/driver/api.h"

namespace gpupool::worker {

// By device, against the session's quota.
struct MemoryAccount {
    std::uint64_t quota_bytes = 0;  // per device; 0: none
    std::vector<std::uint64_t> used_bytes;

    bool charge(CUdevice device, std::uint64_t bytes);
    void release(CUdevice device, std::uint64_t bytes);
};

struct Slab {
    CUdevice device;
    std::size_t bytes;
    CUmemGenericAllocationHandle allocation;
};

// What the driver allocated for the client where the driver chose.
struct Allocation {
    CUdevice device;
    std::uint64_t bytes;
    unsigned references;
};

struct DeviceMemory {
    MemoryAccount account;
    std::map<std::uint64_t, Slab> slabs;                   // by address
    std::set<std::pair<CUdevice, CUdevice>> peers;         // (device, whose memory it may reach)
    std::map<std::uint64_t, Allocation> allocations;       // of cuMemCreate, by handle
    std::map<std::uint64_t, Allocation> pool_allocations;  // stream-ordered, by address
};

// `reader` may reach the session's memory on `owner` from now on, or no more.
void share_slabs(const driver::Api& api, DeviceMemory& memory, CUdevice owner, CUdevice reader, bool may);

}  // namespace gpupool::worker
