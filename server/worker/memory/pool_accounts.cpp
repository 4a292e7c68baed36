#include "server/worker/memory/pool_accounts.h"

#include <algorithm>

#include "server/worker/memory/device_memory.h"

namespace gpupool::worker {

void PoolAccounts::made(CUmemoryPool pool, CUdevice device) {
    pools_.try_emplace(pool, Pool{device});
}

// 0 if the driver does not report it, or if there is no quota to hold it against.
std::uint64_t PoolAccounts::held_bytes(const driver::Api& api, CUmemoryPool pool, CUdevice device) const {
    if (account_.quota_bytes(device) == 0) {
        return 0;
    }
    cuuint64_t bytes = 0;
    const CUresult result =
        driver::call(api.cuMemPoolGetAttribute, pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, static_cast<void*>(&bytes));
    return result == CUDA_SUCCESS ? bytes : 0;
}

// A pool that made() did not report is the default pool of one of the devices.
std::map<CUmemoryPool, PoolAccounts::Pool>::iterator PoolAccounts::find_or_learn(const driver::Api& api,
                                                                                 CUmemoryPool handle) {
    auto found = pools_.find(handle);
    for (CUdevice device = 0; found == pools_.end() && device < static_cast<int>(account_.device_count()); ++device) {
        CUmemoryPool standard = nullptr;
        if (driver::call(api.cuDeviceGetDefaultMemPool, &standard, device) == CUDA_SUCCESS && standard == handle) {
            found = pools_.try_emplace(handle, Pool{device}).first;
        }
    }
    return found;
}

bool PoolAccounts::charge_up_to(Pool& pool, std::uint64_t bytes) {
    if (bytes > pool.charged_bytes) {
        if (!account_.charge(pool.device, bytes - pool.charged_bytes)) {
            return false;
        }
        pool.charged_bytes = bytes;
    }
    return true;
}

bool PoolAccounts::lower_to(Pool& pool, std::uint64_t bytes) {
    if (bytes >= pool.charged_bytes) {
        return false;
    }
    account_.release(pool.device, pool.charged_bytes - bytes);
    pool.charged_bytes = bytes;
    return true;
}

CUresult PoolAccounts::allocate(const driver::Api& api, CUmemoryPool handle, std::uint64_t bytes,
                                const std::function<CUresult(CUdeviceptr&)>& allocate,
                                const std::function<void(CUdeviceptr)>& free, CUdeviceptr& address) {
    const auto known = find_or_learn(api, handle);
    if (known == pools_.end()) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    Pool& pool = known->second;
    const std::uint64_t used = pool.used_bytes;
    if (bytes == 0 || !pool.asked || pool.ended) {
        return CUDA_ERROR_INVALID_VALUE;  // the driver may not know it any more
    }
    if (bytes > ~std::uint64_t{0} - used) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    // A pool may be unable to reuse what it holds: memory freed in another stream is available only later. So a pool
    // that has grown beyond the quota gets no further requests, since each could make it grow more.
    const auto more = [&] { return used + bytes - std::min(used + bytes, pool.charged_bytes); };
    if (!account_.fits(pool.device, more())) {
        recount(api);
    }
    if (!account_.fits(pool.device, more()) || !charge_up_to(pool, used + bytes)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    const CUresult result = allocate(address);
    if (result != CUDA_SUCCESS) {
        lower_to(pool, std::max(used, held_bytes(api, handle, pool.device)));
        return result;
    }
    // Pools grow by more than what is requested, and keep what they have taken.
    if (const std::uint64_t held = held_bytes(api, handle, pool.device); !charge_up_to(pool, held)) {
        free(address);
        unnoticed_frees_ = true;
        account_.force(pool.device, held - pool.charged_bytes);
        pool.charged_bytes = held;
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    pool.used_bytes += bytes;
    allocations_[address] = {handle, bytes};
    return CUDA_SUCCESS;
}

void PoolAccounts::freed(CUdeviceptr address) {
    if (const std::optional<Allocation> allocation = take(address)) {
        end_free(address, *allocation, true);
    }
}

std::optional<PoolAccounts::Allocation> PoolAccounts::take(CUdeviceptr address) {
    const auto known = allocations_.find(address);
    if (known == allocations_.end()) {
        return std::nullopt;
    }
    const Allocation allocation = known->second;
    allocations_.erase(known);
    return allocation;
}

void PoolAccounts::end_free(CUdeviceptr address, const Allocation& allocation, bool freed) {
    if (!freed) {
        allocations_.emplace(address, allocation);
        return;
    }
    const auto pool = pools_.find(allocation.pool);
    unnoticed_frees_ = true;
    pool->second.used_bytes -= allocation.bytes;
    if (pool->second.ended) {
        drop_if_unused(pool);
    } else if (account_.quota_bytes(pool->second.device) == 0) {
        lower_to(pool->second, pool->second.used_bytes);
    }
}

void PoolAccounts::begin_destroy(CUmemoryPool handle) {
    if (const auto pool = pools_.find(handle); pool != pools_.end()) {
        pool->second.asked = false;
    }
}

void PoolAccounts::end_destroy(CUmemoryPool handle, bool ended) {
    const auto pool = pools_.find(handle);
    if (pool == pools_.end()) {
        return;
    }
    pool->second.asked = !ended;
    pool->second.ended = ended;
    if (ended) {
        drop_if_unused(pool);
    }
}

void PoolAccounts::drop_if_unused(std::map<CUmemoryPool, Pool>::iterator pool) {
    lower_to(pool->second, pool->second.used_bytes);
    if (pool->second.used_bytes == 0) {
        pools_.erase(pool);
    }
}

bool PoolAccounts::recount(const driver::Api& api) {
    bool any = false;
    if (unnoticed_frees_ && notice_) {
        unnoticed_frees_ = !notice_();
    }
    for (auto& [handle, pool] : pools_) {
        if (pool.asked) {
            any = lower_to(pool, std::max(pool.used_bytes, held_bytes(api, handle, pool.device))) || any;
        }
    }
    return any;
}

}  // namespace gpupool::worker
