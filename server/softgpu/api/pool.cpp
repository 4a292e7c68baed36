// Stream-ordered allocation and memory pools.
#include "server/softgpu/api/memory.h"
#include "server/softgpu/graph/capture.h"
#include "server/softgpu/graph/payload.h"

using namespace gpupool::softgpu;

namespace {

// While the stream captures, allocations and frees become nodes of the graph. A capture of other streams does not
// affect them.
bool capture_allocation(CUdeviceptr* pointer, size_t bytes, const StreamPtr& stream, CUresult& result) {
    const auto allocate = [&](PayloadPtr& payload) {
        CUDA_MEM_ALLOC_NODE_PARAMS params{};
        params.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
        params.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, stream->context.device->ordinal};
        params.bytesize = bytes;
        const CUresult made = make_allocation(&params, payload);
        if (made == CUDA_SUCCESS) {
            *pointer = params.dptr;
        }
        return made;
    };
    return captured_or_failed(stream, allocate, result);
}

bool capture_free(CUdeviceptr pointer, const StreamPtr& stream, CUresult& result) {
    return captured_or_failed(
        stream, [=](PayloadPtr& payload) { return make_free(pointer, nullptr, payload); }, result);
}

// The memory is available at once, which satisfies the stream's order.
CUresult allocate_async(CUdeviceptr* pointer, size_t bytes, const std::shared_ptr<MemoryPool>& pool,
                        const StreamPtr& stream) {
    SOFTGPU_NOT_NULL(pointer);
    if (bytes == 0) {
        *pointer = 0;
        return CUDA_SUCCESS;
    }
    CUresult result;
    if (capture_allocation(pointer, bytes, stream, result)) {
        return result;
    }
    SOFTGPU_NOT_WHILE_CAPTURING();
    std::uint64_t address = 0;
    result = allocate({&stream->context, bytes, MemoryKind::device, 0, pool}, address);
    if (result == CUDA_SUCCESS) {
        *pointer = address;
    }
    return result;
}

#define SOFTGPU_POOL(handle, name)                \
    SOFTGPU_READY();                              \
    const auto name = state().pools.find(handle); \
    if (name == nullptr) return CUDA_ERROR_INVALID_VALUE

CUresult device_pool(CUmemoryPool* pool, CUdevice device, bool current) {
    Device* found;
    if (const CUresult error = find_device(device, found); error != CUDA_SUCCESS) {
        return error;
    }
    SOFTGPU_NOT_NULL(pool);
    const Lock lock(state_mutex());
    *pool = reinterpret_cast<CUmemoryPool>((current ? found->current_pool : found->default_pool).get());
    return CUDA_SUCCESS;
}

// Pools exist for device memory only.
CUresult check_location(const CUmemLocation* location, CUmemAllocationType type) {
    SOFTGPU_NOT_NULL(location);
    if (type != CU_MEM_ALLOCATION_TYPE_PINNED) {
        return type == CU_MEM_ALLOCATION_TYPE_MANAGED ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
    }
    return location->type == CU_MEM_LOCATION_TYPE_DEVICE ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult location_pool(CUmemoryPool* pool, const CUmemLocation* location, CUmemAllocationType type, bool current) {
    SOFTGPU_READY();
    if (const CUresult error = check_location(location, type); error != CUDA_SUCCESS) {
        return error;
    }
    const CUresult result = device_pool(pool, location->id, current);
    return result == CUDA_ERROR_INVALID_DEVICE ? CUDA_ERROR_INVALID_VALUE : result;
}

}  // namespace

extern "C" {

CUresult CUDAAPI cuMemAllocAsync(CUdeviceptr* pointer, size_t bytes, CUstream handle) {
    SOFTGPU_STREAM(handle, stream);
    std::shared_ptr<MemoryPool> pool;
    {
        const Lock lock(state_mutex());
        pool = stream->context.device->current_pool;
    }
    return allocate_async(pointer, bytes, pool, stream);
}

CUresult CUDAAPI cuMemAllocFromPoolAsync(CUdeviceptr* pointer, size_t bytes, CUmemoryPool pool_handle,
                                         CUstream handle) {
    SOFTGPU_POOL(pool_handle, pool);
    SOFTGPU_STREAM(handle, stream);
    return allocate_async(pointer, bytes, pool, stream);
}

CUresult CUDAAPI cuMemFreeAsync(CUdeviceptr pointer, CUstream handle) {
    SOFTGPU_STREAM(handle, stream);
    if (pointer == 0) {
        return CUDA_SUCCESS;
    }
    CUresult result;
    if (capture_free(pointer, stream, result)) {
        return result;
    }
    SOFTGPU_NOT_WHILE_CAPTURING();
    // A graph's memory can be freed once the graph was launched, even if the launch has not run yet.
    const auto memory = GraphMemory::find(pointer);
    Allocation found;
    const bool known = memory != nullptr ? memory->held()
                                         : state().allocations.find(pointer, found) && found.begin == pointer &&
                                               found.kind == MemoryKind::device;
    if (!known) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (memory != nullptr) {
        memory->set_held(false);
    }
    submit_ordered(stream, [pointer]() -> CUresult {
        Allocation removed;
        if (state().allocations.remove(pointer, removed)) {
            release_memory(removed);
        }
        return CUDA_SUCCESS;
    });
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetDefaultMemPool(CUmemoryPool* pool, CUdevice device) {
    return device_pool(pool, device, false);
}
CUresult CUDAAPI cuDeviceGetMemPool(CUmemoryPool* pool, CUdevice device) {
    return device_pool(pool, device, true);
}

CUresult CUDAAPI cuMemGetDefaultMemPool(CUmemoryPool* pool, CUmemLocation* location, CUmemAllocationType type) {
    return location_pool(pool, location, type, false);
}
CUresult CUDAAPI cuMemGetMemPool(CUmemoryPool* pool, CUmemLocation* location, CUmemAllocationType type) {
    return location_pool(pool, location, type, true);
}
CUresult CUDAAPI cuMemSetMemPool(CUmemLocation* location, CUmemAllocationType type, CUmemoryPool pool) {
    if (const CUresult error = check_location(location, type); error != CUDA_SUCCESS) {
        return error;
    }
    return cuDeviceSetMemPool(location->id, pool);
}

CUresult CUDAAPI cuDeviceSetMemPool(CUdevice device, CUmemoryPool handle) {
    SOFTGPU_POOL(handle, pool);
    Device* found;
    if (const CUresult error = find_device(device, found); error != CUDA_SUCCESS) {
        return error;
    }
    if (pool->device != device) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const Lock lock(state_mutex());
    found->current_pool = pool;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemPoolCreate(CUmemoryPool* handle, const CUmemPoolProps* properties) {
    SOFTGPU_READY();
    SOFTGPU_NOT_WHILE_CAPTURING();
    if (handle == nullptr || properties == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    switch (properties->location.type) {
        case CU_MEM_LOCATION_TYPE_DEVICE: break;
        case CU_MEM_LOCATION_TYPE_HOST:
        case CU_MEM_LOCATION_TYPE_HOST_NUMA: return CUDA_ERROR_NOT_SUPPORTED;
        default: return CUDA_ERROR_INVALID_VALUE;
    }
    if (properties->handleTypes != CU_MEM_HANDLE_TYPE_NONE) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    Device* device;
    if (const CUresult error = find_device(properties->location.id, device); error != CUDA_SUCCESS) {
        return error;
    }
    auto pool = std::make_shared<MemoryPool>();
    pool->device = device->ordinal;
    pool->most_bytes = properties->maxSize;
    state().pools.add(pool);
    *handle = reinterpret_cast<CUmemoryPool>(pool.get());
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemPoolDestroy(CUmemoryPool handle) {
    SOFTGPU_POOL(handle, pool);
    SOFTGPU_NOT_WHILE_CAPTURING();
    if (pool->is_default) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    state().pools.remove(handle);
    const Lock lock(state_mutex());
    Device& device = *state().devices[static_cast<std::size_t>(pool->device)];
    {
        const Lock of_pool(pool->mutex);
        pool->release_threshold_bytes = 0;
    }
    pool->trim(device, 0);
    if (device.current_pool == pool) {
        device.current_pool = device.default_pool;
    }
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemPoolTrimTo(CUmemoryPool handle, size_t least_bytes) {
    SOFTGPU_POOL(handle, pool);
    SOFTGPU_NOT_WHILE_CAPTURING();
    pool->trim(*state().devices[static_cast<std::size_t>(pool->device)], least_bytes);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void* value) {
    SOFTGPU_POOL(handle, pool);
    SOFTGPU_NOT_NULL(value);
    const Lock lock(pool->mutex);
    switch (attribute) {
        case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
        case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
        case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
            pool->flags[attribute] = *static_cast<int*>(value);
            break;
        case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: pool->release_threshold_bytes = *static_cast<cuuint64_t*>(value); break;
        case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
        case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
            if (*static_cast<cuuint64_t*>(value) != 0) {
                return CUDA_ERROR_INVALID_VALUE;
            }
            pool->used_high_bytes = pool->used_bytes.load();
            break;
        default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void* value) {
    SOFTGPU_POOL(handle, pool);
    SOFTGPU_NOT_NULL(value);
    const Lock lock(pool->mutex);
    const auto flag = [&]() GP_REQUIRES(pool->mutex) {
        const auto found = pool->flags.find(attribute);
        return found == pool->flags.end() ? 1 : found->second;
    };
    switch (attribute) {
        case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
        case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
        case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES: *static_cast<int*>(value) = flag(); break;
        case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: *static_cast<cuuint64_t*>(value) = pool->release_threshold_bytes; break;
        case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
            *static_cast<cuuint64_t*>(value) = pool->used_bytes.load() + pool->kept_bytes;
            break;
        case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: *static_cast<cuuint64_t*>(value) = pool->used_bytes.load(); break;
        case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
        case CU_MEMPOOL_ATTR_USED_MEM_HIGH: *static_cast<cuuint64_t*>(value) = pool->used_high_bytes.load(); break;
        default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

// No pool can be shared.
CUresult CUDAAPI cuMemPoolExportPointer(CUmemPoolPtrExportData*, CUdeviceptr) {
    SOFTGPU_READY();
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuMemPoolImportPointer(CUdeviceptr*, CUmemoryPool, CUmemPoolPtrExportData*) {
    SOFTGPU_READY();
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc* access, size_t count) {
    SOFTGPU_POOL(handle, pool);
    return access == nullptr && count != 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemPoolGetAccess(CUmemAccess_flags* flags, CUmemoryPool handle, CUmemLocation* location) {
    SOFTGPU_POOL(handle, pool);
    if (flags == nullptr || location == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return CUDA_SUCCESS;
}

}  // extern "C"
