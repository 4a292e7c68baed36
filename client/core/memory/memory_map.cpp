#include "client/core/memory/memory_map.h"

#include <algorithm>
#include <utility>

#include "common/blocks.h"

namespace gpupool::client {
namespace {

std::uint64_t bytes_of(const MemoryRange& range) {
    return range.bytes;
}

// The range that contains the address, or the next one.
template <class Ranges>
auto first_behind(Ranges& ranges, std::uint64_t address) {
    const auto it = find_block(ranges, address, bytes_of);
    return it == ranges.end() ? ranges.lower_bound(address) : it;
}

}  // namespace

void MemoryMap::add(MemoryRange range) {
    const Lock lock(mutex_);
    range.id = next_id_++;
    if (!range.on_device()) {
        host_begin_.store(std::min(host_begin_.load(), range.base), std::memory_order_release);
        host_end_.store(std::max(host_end_.load(), range.base + range.bytes), std::memory_order_release);
        hidden_blocks_.fetch_add(range.gpu_has ? 0 : 1, std::memory_order_release);
        hidden_added_.fetch_add(range.gpu_has ? 0 : 1, std::memory_order_release);
    }
    if (const auto it = ranges_.find(range.base); it != ranges_.end()) {
        erase(it);
    }
    ranges_[range.base] = range;
}

bool MemoryMap::note_mirrored(std::uint64_t base) {
    const Lock lock(mutex_);
    const auto it = ranges_.find(base);
    if (it == ranges_.end() || it->second.on_device()) {
        return false;
    }
    if (!std::exchange(it->second.gpu_has, true)) {
        hidden_blocks_.fetch_sub(1, std::memory_order_release);
    }
    return true;
}

MemoryMap::Ranges::iterator MemoryMap::erase(Ranges::iterator it) {
    if (!it->second.on_device()) {
        hidden_blocks_.fetch_sub(it->second.gpu_has ? 0 : 1, std::memory_order_release);
    }
    return ranges_.erase(it);
}

std::optional<MemoryRange> MemoryMap::remove(std::uint64_t base) {
    const Lock lock(mutex_);
    const auto it = ranges_.find(base);
    if (it == ranges_.end()) {
        return std::nullopt;
    }
    const MemoryRange range = it->second;
    erase(it);
    return range;
}

void MemoryMap::set_idle(std::uint64_t base, bool idle) {
    const Lock lock(mutex_);
    if (const auto it = ranges_.find(base); it != ranges_.end()) {
        it->second.idle = idle;
    }
}

std::optional<MemoryRange> MemoryMap::find(std::uint64_t address) const {
    const SharedLock lock(mutex_);
    const auto it = find_block(ranges_, address, bytes_of);
    return it == ranges_.end() ? std::nullopt : std::optional(it->second);
}

std::optional<MemoryRange> MemoryMap::find_within(std::uint64_t address, std::uint64_t bytes) const {
    const SharedLock lock(mutex_);
    const auto it = first_behind(ranges_, address);
    return it != ranges_.end() && it->first - std::min(it->first, address) < bytes ? std::optional(it->second)
                                                                                   : std::nullopt;
}

std::vector<MemoryRange> MemoryMap::remove_registered(std::uint64_t address, std::uint64_t bytes) {
    const Lock lock(mutex_);
    std::vector<MemoryRange> removed;
    auto it = first_behind(ranges_, address);
    while (it != ranges_.end() && it->first < address + bytes) {
        if (it->second.kind == MemoryKind::registered) {
            removed.push_back(it->second);
            it = erase(it);
        } else {
            ++it;
        }
    }
    return removed;
}

std::vector<MemoryRange> MemoryMap::end_context(const ContextState* context) {
    const Lock lock(mutex_);
    std::vector<MemoryRange> removed;
    for (auto it = ranges_.begin(); it != ranges_.end();) {
        if (it->second.context != context) {
            ++it;
        } else if (it->second.kind == MemoryKind::pool) {
            it->second.context = nullptr;
            ++it;
        } else {
            removed.push_back(it->second);
            it = erase(it);
        }
    }
    return removed;
}

bool MemoryMap::set_sync_memops(std::uint64_t address, bool on) {
    const Lock lock(mutex_);
    const auto it = find_block(ranges_, address, bytes_of);
    if (it == ranges_.end() || it->second.idle) {
        return false;
    }
    it->second.sync_memops = on;
    if (on) {
        any_sync_memops_.store(true, std::memory_order_release);
    }
    return true;
}

}  // namespace gpupool::client
