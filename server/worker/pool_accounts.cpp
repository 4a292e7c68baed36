#include "server/worker/pool_accounts.h"

#include <algorithm>

#include "server/worker/device_memory.h"

namespace gpupool::worker {

// 0 where the driver does not say.
std::uint64_t PoolAccounts::held_bytes(const driver::Api& api, CUmemoryPool pool) {
    cuuint64_t bytes = 0;
    const CUresult result =
        driver::call(api.cuMemPoolGetAttribute, pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, static_cast<void*>(&bytes));
    return result == CUDA_SUCCESS ? bytes : 0;
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

CUresult PoolAccounts::allocate(const driver::Api& api, CUmemoryPool handle, CUdevice device, std::uint64_t bytes,
                                const std::function<CUresult(CUdeviceptr&)>& allocate,
                                const std::function<void(CUdeviceptr)>& free, CUdeviceptr& address) {
    Pool& pool = pools_.try_emplace(handle, Pool{device}).first->second;
    const std::uint64_t used = pool.used_bytes;
    if (bytes > ~std::uint64_t{0} - used) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (used + bytes > pool.charged_bytes && !account_.fits(device, used + bytes - pool.charged_bytes)) {
        settle(api);
    }
    if (!charge_up_to(pool, used + bytes)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    const CUresult result = allocate(address);
    if (result != CUDA_SUCCESS) {
        lower_to(pool, std::max(used, held_bytes(api, handle)));
        return result;
    }
    if (!charge_up_to(pool, held_bytes(api, handle))) {  // pools grow by more than what is asked of them
        free(address);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    pool.used_bytes += bytes;
    allocations_[address] = {handle, bytes};
    return CUDA_SUCCESS;
}

bool PoolAccounts::freed(CUdeviceptr address) {
    const auto allocation = allocations_.find(address);
    if (allocation == allocations_.end()) {
        return false;
    }
    const auto pool = pools_.find(allocation->second.pool);
    pool->second.used_bytes -= allocation->second.bytes;
    allocations_.erase(allocation);
    if (pool->second.ended) {
        drop_if_unused(pool);
    }
    return true;
}

void PoolAccounts::begin_to_end(CUmemoryPool handle) {
    if (const auto pool = pools_.find(handle); pool != pools_.end()) {
        pool->second.asked = false;
    }
}

void PoolAccounts::end(CUmemoryPool handle, bool ended) {
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

bool PoolAccounts::settle(const driver::Api& api) {
    bool any = false;
    for (auto& [handle, pool] : pools_) {
        if (pool.asked) {
            any = lower_to(pool, std::max(pool.used_bytes, held_bytes(api, handle))) || any;
        }
    }
    return any;
}

}  // namespace gpupool::worker
