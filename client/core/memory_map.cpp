#include "client/core/memory_map.h"

#include <algorithm>
#include <mutex>

namespace gpupool::client {

void MemoryMap::add(MemoryRange range) {
    const std::unique_lock lock(mutex_);
    range.id = next_id_++;
    if (!range.on_device()) {
        host_begin_.store(std::min(host_begin_.load(), range.base), std::memory_order_release);
        host_end_.store(std::max(host_end_.load(), range.base + range.bytes), std::memory_order_release);
    }
    ranges_[range.base] = range;
}

std::optional<MemoryRange> MemoryMap::remove(std::uint64_t base) {
    const std::unique_lock lock(mutex_);
    const auto it = ranges_.find(base);
    if (it == ranges_.end()) {
        return std::nullopt;
    }
    const MemoryRange range = it->second;
    ranges_.erase(it);
    return range;
}

std::optional<MemoryRange> MemoryMap::find(std::uint64_t address) const {
    const std::shared_lock lock(mutex_);
    auto it = ranges_.upper_bound(address);
    if (it == ranges_.begin()) {
        return std::nullopt;
    }
    --it;
    if (address - it->second.base >= it->second.bytes) {
        return std::nullopt;
    }
    return it->second;
}

std::vector<MemoryRange> MemoryMap::remove_of(const ContextState* context) {
    const std::unique_lock lock(mutex_);
    std::vector<MemoryRange> removed;
    for (auto it = ranges_.begin(); it != ranges_.end();) {
        if (it->second.context == context) {
            removed.push_back(it->second);
            it = ranges_.erase(it);
        } else {
            ++it;
        }
    }
    return removed;
}

bool MemoryMap::set_sync_memops(std::uint64_t address, bool on) {
    const std::unique_lock lock(mutex_);
    auto it = ranges_.upper_bound(address);
    if (it == ranges_.begin() || address - std::prev(it)->second.base >= std::prev(it)->second.bytes) {
        return false;
    }
    std::prev(it)->second.sync_memops = on;
    return true;
}

}  // namespace gpupool::client
