#include "client/core/memory/address_window.h"

#include <sys/mman.h>

#include <algorithm>

#include "common/blocks.h"
#include "common/round_up.h"

namespace gpupool::client {
namespace {

constexpr std::uint64_t kTiB = 1ull << 40;

bool take_exactly(std::uint64_t base, std::uint64_t bytes) {
    // A hint instead of MAP_FIXED: the kernel follows it if the range is free. (ThreadSanitizer turns an address that
    // it needs itself into 0, which MAP_FIXED would take for the null page.)
    void* const at =
        mmap(reinterpret_cast<void*>(base), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) {
        return false;
    }
    if (reinterpret_cast<std::uint64_t>(at) != base) {
        munmap(at, bytes);
        return false;
    }
    return true;
}

}  // namespace

std::vector<std::pair<std::uint64_t, std::uint64_t>> AddressWindow::reserve_candidates() {
    // 0x600000000000 is AddressSanitizer's heap, 0x7e8000000000 is free under the sanitizers too. The others are for
    // processes that use either.
    static constexpr std::uint64_t kBases[] = {0x600000000000, 0x7e8000000000, 0x500000000000, 0x400000000000,
                                               0x200000000000};
    static constexpr std::uint64_t kSizes[] = {4 * kTiB, kTiB, kTiB / 4};
    std::vector<std::pair<std::uint64_t, std::uint64_t>> candidates;
    for (const std::uint64_t base : kBases) {
        for (const std::uint64_t bytes : kSizes) {
            if (take_exactly(base, bytes)) {
                candidates.emplace_back(base, bytes);
                break;
            }
        }
    }
    return candidates;
}

void AddressWindow::abandon(const std::vector<std::pair<std::uint64_t, std::uint64_t>>& candidates) {
    for (const auto& [base, bytes] : candidates) {
        munmap(reinterpret_cast<void*>(base), bytes);
    }
}

bool AddressWindow::is_offered(const std::vector<std::pair<std::uint64_t, std::uint64_t>>& candidates,
                               std::uint64_t base, std::uint64_t bytes) {
    return std::any_of(candidates.begin(), candidates.end(), [&](const auto& candidate) {
        return candidate.first == base && bytes != 0 && bytes <= candidate.second && bytes % kGranularity == 0;
    });
}

void AddressWindow::keep(const std::vector<std::pair<std::uint64_t, std::uint64_t>>& candidates, std::uint64_t base,
                         std::uint64_t bytes) {
    for (const auto& [candidate, size] : candidates) {
        if (candidate != base) {
            munmap(reinterpret_cast<void*>(candidate), size);
        }
    }
    const Lock lock(mutex_);
    base_ = base;
    bytes_ = bytes;
    free_ = {{base, bytes}};
}

std::uint64_t AddressWindow::allocate(std::uint64_t bytes, std::uint64_t alignment, std::uint64_t wanted) {
    const Lock lock(mutex_);
    return allocate_locked(bytes, alignment, wanted);
}

void AddressWindow::free(std::uint64_t address, std::uint64_t bytes) {
    const Lock lock(mutex_);
    free_locked(address, bytes);
}

std::uint64_t AddressWindow::reserve(std::uint64_t bytes, std::uint64_t alignment, std::uint64_t wanted) {
    const Lock lock(mutex_);
    const std::uint64_t address = allocate_locked(bytes, alignment, wanted);
    if (address != 0) {
        reserved_[address] = bytes;
    }
    return address;
}

bool AddressWindow::unreserve(std::uint64_t address, std::uint64_t bytes) {
    const Lock lock(mutex_);
    const auto it = reserved_.find(address);
    if (it == reserved_.end() || it->second != bytes) {
        return false;
    }
    reserved_.erase(it);
    free_locked(address, bytes);
    return true;
}

bool AddressWindow::is_reserved(std::uint64_t address, std::uint64_t bytes) const {
    const Lock lock(mutex_);
    while (true) {
        const auto it = find_block(reserved_, address, [](std::uint64_t size) { return size; });
        if (it == reserved_.end()) {
            return false;
        }
        const std::uint64_t within = it->second - (address - it->first);
        if (bytes <= within) {
            return true;
        }
        address += within;
        bytes -= within;
    }
}

std::pair<std::uint64_t, std::uint64_t> AddressWindow::reservation_of(std::uint64_t address) const {
    const Lock lock(mutex_);
    const auto it = find_block(reserved_, address, [](std::uint64_t size) { return size; });
    if (it == reserved_.end()) {
        return {0, 0};
    }
    return {it->first, it->second};
}

std::uint64_t AddressWindow::allocate_locked(std::uint64_t bytes, std::uint64_t alignment, std::uint64_t wanted) {
    if (bytes == 0 || bytes > bytes_) {
        return 0;
    }
    bytes = round_up(bytes, kGranularity);
    const auto take = [&](std::map<std::uint64_t, std::uint64_t>::iterator it, std::uint64_t at) GP_REQUIRES(mutex_) {
        const std::uint64_t start = it->first, end = it->first + it->second;
        free_.erase(it);
        if (at != start) {
            free_[start] = at - start;
        }
        if (at + bytes != end) {
            free_[at + bytes] = end - at - bytes;
        }
        return at;
    };
    if (wanted != 0 && wanted % kGranularity == 0 && wanted % alignment == 0) {
        auto it = free_.upper_bound(wanted);
        if (it != free_.begin() && wanted - std::prev(it)->first <= std::prev(it)->second &&
            std::prev(it)->first + std::prev(it)->second - wanted >= bytes) {
            return take(std::prev(it), wanted);
        }
    }
    for (auto it = free_.begin(); it != free_.end(); ++it) {
        const std::uint64_t at = round_up(it->first, alignment);
        if (at - it->first <= it->second && it->second - (at - it->first) >= bytes) {
            return take(it, at);
        }
    }
    return 0;
}

void AddressWindow::free_locked(std::uint64_t address, std::uint64_t bytes) {
    bytes = round_up(bytes, kGranularity);
    const auto it = free_.emplace(address, bytes).first;
    if (const auto next = std::next(it); next != free_.end() && it->first + it->second == next->first) {
        it->second += next->second;
        free_.erase(next);
    }
    if (it != free_.begin()) {
        const auto before = std::prev(it);
        if (before->first + before->second == it->first) {
            before->second += it->second;
            free_.erase(it);
        }
    }
}

}  // namespace gpupool::client
