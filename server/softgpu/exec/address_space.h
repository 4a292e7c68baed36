// Which host addresses a kernel may touch: every live allocation, mapping, pinned host block and module variable.
//
// Ownership: one process-wide map of half-open ranges, none overlapping. Threads: any; lookups take a shared lock,
// and warps keep the range that they hit last, valid as long as the map's generation has not moved.
// Errors: a lookup that finds nothing says so.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>

#include "common/mutex.h"

namespace gpupool::softgpu {

// Devices that may read and write, a bit for each. Where `by_peers`, those bits are the owner's, and whoever enabled
// peer access to it may as well.
struct RangeAccess {
    std::uint64_t readers = ~std::uint64_t{0};
    std::uint64_t writers = ~std::uint64_t{0};
    bool by_peers = false;
};

struct AddressRange {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    RangeAccess access;
};

class AddressSpace {
  public:
    static AddressSpace& instance();

    void add(std::uint64_t begin, std::uint64_t size_bytes, const RangeAccess& access = {});
    // Removes every part of [begin, begin + size) that is there.
    void remove(std::uint64_t begin, std::uint64_t size_bytes);
    bool find(std::uint64_t address, AddressRange& found) const;
    // True when all of [begin, begin + size) is covered, by one range or by neighbours.
    bool covers(std::uint64_t begin, std::uint64_t size_bytes) const;
    // True when any part of [begin, begin + size) is there.
    bool touches(std::uint64_t begin, std::uint64_t size_bytes) const;

    std::uint32_t generation() const noexcept { return generation_.load(std::memory_order_acquire); }

  private:
    mutable SharedMutex mutex_;
    std::map<std::uint64_t, AddressRange> ranges_ GP_GUARDED_BY(mutex_);  // by begin
    std::atomic<std::uint32_t> generation_{1};
};

// A warp's memory of its last hit, which its device may read and write.
struct RangeCache {
    std::uint64_t begin = 1;
    std::uint64_t end = 0;
    std::uint32_t generation = 0;
};

// Generic addresses of shared and local memory: windows of the address space that nothing else can occupy. What lies
// inside is decided by the lane that asks.
struct Windows {
    std::uint64_t shared_base = 0;
    std::uint64_t local_base = 0;
    static constexpr std::uint64_t size_bytes = std::uint64_t{16} << 20;
};
const Windows& windows();

}  // namespace gpupool::softgpu
