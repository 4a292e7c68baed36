// The device memory that a session holds.
//
// Threads: the dispatcher's alone.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "server/driver/api.h"
#include "server/worker/graphs/graph_memory.h"
#include "server/worker/memory/pool_accounts.h"

namespace gpupool::worker {

struct ContextState;

// Of slabs, which memory is given out in: the driver's granularity.
inline constexpr std::uint64_t kLeastSlabBytes = 2u << 20;

// By device, against the session's quota.
struct MemoryAccount {
    std::uint64_t quota_bytes = 0;  // per device; 0: none
    bool told = false;              // the log, of the first allocation that did not fit
    std::vector<std::uint64_t> used_bytes;

    // In whole slabs, so that what is told of it can be used up.
    void set_quota(std::uint64_t bytes);
    [[nodiscard]] bool fits(CUdevice device, std::uint64_t bytes) const;
    bool charge(CUdevice device, std::uint64_t bytes);
    // What is taken already, beyond the quota where it must be: then nothing fits until enough has been given back.
    void force(CUdevice device, std::uint64_t bytes);
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
};

// Of cuMemCreate. The memory lives as long as anything has it: references to its handle, or places where it is mapped.
struct SharedAllocation : Allocation {
    std::size_t references = 1;
    std::size_t mappings = 0;
};

struct Mapping {
    std::uint64_t bytes;
    std::shared_ptr<SharedAllocation> allocation;
};

struct Array : Allocation {
    const ContextState* context;  // it ends with it
};

struct DeviceMemory {
    MemoryAccount account;
    std::map<std::uint64_t, Slab> slabs;                                     // by address
    std::set<std::pair<CUdevice, CUdevice>> peers;                           // (device, whose memory it may reach)
    std::map<std::uint64_t, std::shared_ptr<SharedAllocation>> allocations;  // by the driver's handle
    std::map<std::uint64_t, Mapping> mappings;                               // of those, by address
    PoolAccounts pools{account};  // what the driver allocates in stream order
    GraphMemory graphs{account};
    std::unordered_map<std::uint64_t, Array> arrays;  // by the client's handle

    // Charged to the account; when it does not fit, what pools have given back since is looked for first, and what idle
    // graphs keep is taken from them, as a driver does that has no more.
    bool charge(const driver::Api& api, CUdevice device, std::uint64_t bytes);
    // Counts what pools and graphs hold now. True when that is less than before.
    bool settle(const driver::Api& api);
    // Takes what nothing has any more from the account; false: something has it.
    bool settle(const SharedAllocation& allocation);
    // False where there is no such array.
    bool forget_array(std::uint64_t client);
    void forget_arrays(const ContextState& context);
};

// `reader` may reach the session's memory on `owner` from now on, or no more.
void share_slabs(const driver::Api& api, DeviceMemory& memory, CUdevice owner, CUdevice reader, bool may);

}  // namespace gpupool::worker
