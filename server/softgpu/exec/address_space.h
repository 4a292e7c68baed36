// The host addresses that a kernel may access: every live allocation, mapping, pinned host block and module variable.
//
// Ownership: one process-wide map of half-open ranges that do not overlap.
// Threads: any. Lookups take a shared lock. Each warp caches the range that it accessed last, which is valid until the
//   map's generation changes.
// Errors: a lookup returns false if it finds nothing.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>

#include "common/mutex.h"

namespace gpupool::softgpu {

// Bit per device that may read or write. If `by_peers` is set, these are the owner's bits, and devices with peer access
// to the owner may access the range as well.
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
    // Removes all parts of ranges within [begin, begin + size).
    void remove(std::uint64_t begin, std::uint64_t size_bytes);
    bool find(std::uint64_t address, AddressRange& found) const;
    // Whether ranges cover all of [begin, begin + size).
    bool covers(std::uint64_t begin, std::uint64_t size_bytes) const;
    // Whether a range overlaps [begin, begin + size).
    bool touches(std::uint64_t begin, std::uint64_t size_bytes) const;

    std::uint32_t generation() const noexcept { return generation_.load(std::memory_order_acquire); }

  private:
    mutable SharedMutex mutex_;
    std::map<std::uint64_t, AddressRange> ranges_ GP_GUARDED_BY(mutex_);  // by begin address
    std::atomic<std::uint32_t> generation_{1};
};

// A warp's cache of the last range that it accessed. Its device may read and write it.
struct RangeCache {
    std::uint64_t begin = 1;
    std::uint64_t end = 0;
    std::uint32_t generation = 0;
};

// Windows of generic addresses for shared and local memory. Nothing else can be mapped there. The memory behind such an
// address depends on the lane that accesses it.
struct Windows {
    std::uint64_t shared_base = 0;
    std::uint64_t local_base = 0;
    static constexpr std::uint64_t kSizeBytes = std::uint64_t{16} << 20;
};
const Windows& windows();

}  // namespace gpupool::softgpu
