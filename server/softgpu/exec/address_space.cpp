#include "server/softgpu/exec/address_space.h"

#include <sys/mman.h>

#include <cstdlib>

namespace gpupool::softgpu {

AddressSpace& AddressSpace::instance() {
    // Never destroyed, since kernels may still be running when the process exits.
    static AddressSpace& space = *new AddressSpace;
    return space;
}

void AddressSpace::add(std::uint64_t begin, std::uint64_t size_bytes, const RangeAccess& access) {
    if (size_bytes == 0) {
        return;
    }
    const Lock lock(mutex_);
    ranges_[begin] = {begin, begin + size_bytes, access};
    generation_.fetch_add(1, std::memory_order_release);
}

void AddressSpace::remove(std::uint64_t begin, std::uint64_t size_bytes) {
    const std::uint64_t end = begin + size_bytes;
    const Lock lock(mutex_);
    auto at = ranges_.upper_bound(begin);
    if (at != ranges_.begin()) {
        --at;
    }
    while (at != ranges_.end() && at->second.begin < end) {
        const AddressRange range = at->second;
        if (range.end <= begin) {
            ++at;
            continue;
        }
        at = ranges_.erase(at);
        if (range.begin < begin) {
            ranges_[range.begin] = {range.begin, begin, range.access};
        }
        if (range.end > end) {
            ranges_[end] = {end, range.end, range.access};
        }
    }
    generation_.fetch_add(1, std::memory_order_release);
}

bool AddressSpace::find(std::uint64_t address, AddressRange& found) const {
    const SharedLock lock(mutex_);
    auto at = ranges_.upper_bound(address);
    if (at == ranges_.begin()) {
        return false;
    }
    --at;
    if (address >= at->second.end) {
        return false;
    }
    found = at->second;
    return true;
}

bool AddressSpace::covers(std::uint64_t begin, std::uint64_t size_bytes) const {
    const std::uint64_t end = begin + size_bytes;
    if (end < begin) {
        return false;
    }
    while (begin < end) {
        AddressRange range;
        if (!find(begin, range)) {
            return false;
        }
        begin = range.end;
    }
    return true;
}

bool AddressSpace::touches(std::uint64_t begin, std::uint64_t size_bytes) const {
    if (size_bytes == 0) {
        return false;
    }
    const SharedLock lock(mutex_);
    auto at = ranges_.upper_bound(begin + size_bytes - 1);
    if (at == ranges_.begin()) {
        return false;
    }
    --at;
    return at->second.end > begin;
}

const Windows& windows() {
    static const Windows instance = [] {
        Windows result;
        void* base =
            mmap(nullptr, 2 * Windows::kSizeBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (base == MAP_FAILED) {
            std::abort();  // fails only without 32 MiB of free address space
        }
        result.shared_base = reinterpret_cast<std::uint64_t>(base);
        result.local_base = result.shared_base + Windows::kSizeBytes;
        return result;
    }();
    return instance;
}

}  // namespace gpupool::softgpu
