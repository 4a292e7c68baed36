// What the memory entry points share.
//
// Ownership: the Allocations registry. Threads: any. Errors: CUresult.
#pragma once

#include <algorithm>
#include <cstring>

#include "server/softgpu/api/objects.h"

namespace gpupool::softgpu {

struct AllocationRequest {
    Context* context = nullptr;
    std::uint64_t size_bytes = 0;
    MemoryKind kind = MemoryKind::device;
    unsigned flags = 0;
    std::shared_ptr<MemoryPool> pool;
};
CUresult allocate(const AllocationRequest& request, std::uint64_t& address);

// The reservation that the address is in, as address and bytes; zeros if there is none.
std::pair<std::uint64_t, std::uint64_t> reservation_of(std::uint64_t address);

}  // namespace gpupool::softgpu
