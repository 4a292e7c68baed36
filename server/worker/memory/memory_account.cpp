#include "server/worker/memory/memory_account.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "common/log.h"
#include "common/units.h"

namespace gpupool::worker {

MemoryAccount::MemoryAccount(std::size_t devices, std::uint64_t quota_bytes) {
    const std::uint64_t quota = in_allocation_units(quota_bytes);
    auto account = supervision::JobAccount::make(std::vector<supervision::AccountDevice>(devices, {"", quota, 0}));
    if (!account) {
        log::error("the session has no account of its memory, and can allocate none: {}", account.error().message);
        return;
    }
    account_ = std::move(*account);
    devices_.resize(devices);
    std::iota(devices_.begin(), devices_.end(), 0);
}

MemoryAccount::MemoryAccount(supervision::JobAccount account, std::size_t slot, std::vector<std::size_t> devices)
    : account_(std::move(account)), slot_(slot), devices_(std::move(devices)) {}

std::uint64_t MemoryAccount::quota_bytes(CUdevice device) const {
    return has(device) ? account_->quota_bytes(index_of(device)) : 0;
}

std::uint64_t MemoryAccount::context_bytes(CUdevice device) const {
    return has(device) ? account_->context_bytes(index_of(device)) : 0;
}

std::uint64_t MemoryAccount::used_bytes(CUdevice device) const {
    return has(device) ? account_->used_bytes(slot_, index_of(device)) : 0;
}

std::uint64_t MemoryAccount::free_bytes(CUdevice device) const {
    const std::uint64_t quota = quota_bytes(device);
    return quota == 0 ? ~std::uint64_t{0} : quota - std::min(quota, account_->used_bytes(index_of(device)));
}

std::vector<std::uint64_t> MemoryAccount::used() const {
    std::vector<std::uint64_t> bytes;
    for (const std::size_t index : devices_) {
        bytes.push_back(account_->used_bytes(slot_, index));
    }
    return bytes;
}

bool MemoryAccount::fits(CUdevice device, std::uint64_t bytes) const {
    return has(device) && account_->fits(index_of(device), bytes);
}

bool MemoryAccount::charge(CUdevice device, std::uint64_t bytes) {
    if (has(device) && account_->take(slot_, index_of(device), bytes)) {
        ++changes_;
        return true;
    }
    if (const std::uint64_t quota = quota_bytes(device); quota != 0 && !logged_.exchange(true)) {
        log::warn("out of memory: {} bytes more on device {} would pass the quota of {}, of which {} are used", bytes,
                  device, quota, account_->used_bytes(index_of(device)));
    }
    return false;
}

void MemoryAccount::force(CUdevice device, std::uint64_t bytes) {
    if (has(device)) {
        ++changes_;
        account_->force(slot_, index_of(device), bytes);
    }
}

void MemoryAccount::release(CUdevice device, std::uint64_t bytes) {
    if (has(device)) {
        ++changes_;
        account_->give_back(slot_, index_of(device), bytes);
    }
}

}  // namespace gpupool::worker
