#include "server/worker/memory/device_memory.h"

#include <utility>

#include "server/worker/session/objects.h"

namespace gpupool::worker {

void DeviceMemory::add_reference(CUmemGenericAllocationHandle handle,
                                 const std::shared_ptr<SharedAllocation>& allocation) {
    SharedHandle& open = allocations[handle];
    open.allocation = allocation;
    ++open.references;
    ++allocation->references;
}

bool DeviceMemory::charge(const driver::Api& api, CUdevice device, std::uint64_t bytes) {
    if (bytes == 0) {
        return true;
    }
    if (!account.fits(device, bytes)) {
        pools.recount(api);
    }
    if (!account.fits(device, bytes)) {
        graphs.trim_if_any(api, device);
    }
    return account.charge(device, bytes);
}

CUresult DeviceMemory::charge_code(const driver::Api& api, std::uint64_t handle, const ContextState* context,
                                   const std::string& kernel) {
    if (context == nullptr) {
        return CUDA_SUCCESS;
    }
    const CodeMemory::Use use = code.first_use(handle, *context, kernel);
    if (!charge(api, context->device, use.bytes)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    code.note(use, *context);
    return CUDA_SUCCESS;
}

bool DeviceMemory::charge_context(const driver::Api& api, CUdevice device) {
    if (!charge(api, device, driver.needed_for_context(device))) {
        return false;
    }
    driver.begin_context(device);
    return true;
}

bool DeviceMemory::charge_streams(const driver::Api& api, const ContextState& context, std::size_t count) {
    if (!charge(api, context.device, driver.needed_for_streams(context, count))) {
        return false;
    }
    driver.note_streams(context, count);
    return true;
}

bool DeviceMemory::charge_nodes(const driver::Api& api, CUdevice device, std::uint64_t count) {
    if (!charge(api, device, driver.needed_for_nodes(count))) {
        return false;
    }
    driver.note_nodes(count);
    return true;
}

bool DeviceMemory::charge_limit(const driver::Api& api, const ContextState& context, CUlimit limit, std::size_t value) {
    const std::uint64_t needed = driver.needed_bytes(context, limit, value);
    const std::uint64_t counted = driver.counted_bytes(context, limit);
    if (needed > counted) {
        if (!charge(api, context.device, needed - counted)) {
            return false;
        }
        driver.count(context, limit, needed);
    }
    return true;
}

bool DeviceMemory::recount(const driver::Api& api) {
    const bool less = pools.recount(api);
    return graphs.recount(api) || less;
}

bool DeviceMemory::release_if_unused(const SharedAllocation& allocation) {
    if (allocation.references != 0 || allocation.mappings != 0) {
        return false;
    }
    account.release(allocation.device, allocation.bytes);
    return true;
}

void DeviceMemory::note_tiles(Array& array, const std::shared_ptr<SharedAllocation>& allocation) {
    if (array.tiles.insert(allocation).second) {
        ++allocation->mappings;
    }
}

void DeviceMemory::release(const Array& array) {
    account.release(array.device, array.bytes);
    for (const auto& allocation : array.tiles) {
        --allocation->mappings;
        release_if_unused(*allocation);
    }
}

bool DeviceMemory::forget_array(std::uint64_t client) {
    const auto it = arrays.find(client);
    if (it == arrays.end()) {
        return false;
    }
    release(it->second);
    arrays.erase(it);
    return true;
}

void DeviceMemory::forget_arrays(const ContextState& context) {
    std::erase_if(arrays, [&](const auto& entry) {
        if (entry.second.context != &context) {
            return false;
        }
        release(entry.second);
        return true;
    });
}

void share_slabs(const driver::Api& api, DeviceMemory& memory, CUdevice owner, CUdevice reader, bool may) {
    const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, reader},
                                 may ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE};
    for (const auto& [address, slab] : memory.slabs) {
        if (slab.device == owner) {
            driver::call(api.cuMemSetAccess, address, slab.bytes, &access, std::size_t{1});
        }
    }
    if (may) {
        memory.peers.insert({reader, owner});
    } else {
        memory.peers.erase({reader, owner});
    }
}

}  // namespace gpupool::worker
