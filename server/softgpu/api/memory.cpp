// Allocation of device, host and managed memory, and pointer queries.
#include "server/softgpu/api/memory.h"

#include <sys/mman.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include "server/softgpu/exec/address_space.h"
#include "server/softgpu/graph/capture.h"
#include "server/softgpu/graph/memory.h"

namespace gpupool::softgpu {
namespace {

constexpr std::uint64_t kMaxHostBytes = std::uint64_t{1} << 46;

// The machine's RAM and swap: no allocation of host memory can be larger.
std::uint64_t host_bytes() {
    struct sysinfo info {};
    if (sysinfo(&info) != 0) {
        return kMaxHostBytes;
    }
    return (std::uint64_t{info.totalram} + info.totalswap) * info.mem_unit;
}

void* map_memory(std::uint64_t bytes) {
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? nullptr : memory;
}

}  // namespace

CUresult allocate(const AllocationRequest& request, std::uint64_t& address) {
    if (request.size_bytes == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (request.size_bytes > kMaxHostBytes) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (request.kind == MemoryKind::host && request.size_bytes > host_bytes()) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    const bool counted =
        request.kind == MemoryKind::device || request.kind == MemoryKind::managed || request.kind == MemoryKind::array;
    // Rounded up like the hardware's allocation unit, so that "used" shows what a program cannot allocate any more.
    const std::uint64_t counted_bytes = counted ? (request.size_bytes + 511) / 512 * 512 : 0;
    Device& device = *request.context->device;
    MemoryPool* const pool = request.pool.get();
    const auto take = [&] { return pool != nullptr ? pool->take(device, counted_bytes) : device.take(counted_bytes); };
    if (counted && !take()) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    void* memory = map_memory(request.size_bytes);
    if (memory == nullptr) {
        if (counted && pool != nullptr) {
            pool->give(device, counted_bytes);
        }
        if (counted && pool == nullptr) {
            device.give(counted_bytes);
        }
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    address = reinterpret_cast<std::uint64_t>(memory);
    state().allocations.add({address, request.size_bytes, request.kind, request.context, device.ordinal, request.flags,
                             state().next_id.fetch_add(1), counted_bytes, request.pool, nullptr});
    return CUDA_SUCCESS;
}

}  // namespace gpupool::softgpu

using namespace gpupool::softgpu;

namespace {

// Freeing needs no current context, since the allocation knows its own.
CUresult free_of_kind(std::uint64_t address, bool host) {
    SOFTGPU_READY();
    if (!context_stack().empty()) {
        SOFTGPU_CONTEXT(context);
    }
    SOFTGPU_NOT_WHILE_CAPTURING();
    if (address == 0) {
        return CUDA_SUCCESS;
    }
    // Memory of a graph is allocated from the launch on, but exists only once the launch has run.
    const auto of_graph = GraphMemory::find(address);
    if (of_graph != nullptr && of_graph->held()) {
        for (const ContextPtr& one : state().contexts.all()) {
            one->synchronize();
        }
    }
    Allocation found;
    const bool freed = of_graph != nullptr && !of_graph->held();
    if (freed || !state().allocations.find(address, found) || found.begin != address) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const bool fits =
        host ? found.kind == MemoryKind::host : found.kind == MemoryKind::device || found.kind == MemoryKind::managed;
    if (!fits) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (found.context != nullptr) {
        if (const CUresult status = found.context->status(); status != CUDA_SUCCESS) {
            return status;
        }
        found.context->synchronize_exclusively();
    }
    // The driver waits for the work of the context, and of the device's other contexts (measured on an H100).
    for (const ContextPtr& other : state().contexts.all()) {
        if (other.get() != found.context && other->device->ordinal == found.device) {
            other->synchronize();
        }
    }
    if (!state().allocations.remove(address, found)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (found.graph_memory != nullptr) {
        found.graph_memory->set_held(false);
    }
    release_memory(found);
    return CUDA_SUCCESS;
}

CUresult pointer_attribute(void* data, CUpointer_attribute attribute, CUdeviceptr pointer) {
    Allocation found;
    const bool known = state().allocations.find(pointer, found);
    const auto put = [&](auto value) {
        std::memcpy(data, &value, sizeof value);
        return CUDA_SUCCESS;
    };
    if (!known) {
        // A module's variable is device memory too, but has no allocation of its own.
        AddressRange range;
        if (!AddressSpace::instance().find(pointer, range)) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        found = {range.begin, range.end - range.begin, MemoryKind::device, nullptr, 0, 0, 0, 0, nullptr, nullptr};
    }
    const bool host = found.on_host();
    switch (attribute) {
        case CU_POINTER_ATTRIBUTE_CONTEXT: return put(reinterpret_cast<CUcontext>(found.context));
        case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
            return put(static_cast<unsigned>(host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE));
        case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: return put(pointer);
        case CU_POINTER_ATTRIBUTE_HOST_POINTER:
            if (!host && found.kind != MemoryKind::managed) {
                return CUDA_ERROR_INVALID_VALUE;
            }
            return put(reinterpret_cast<void*>(pointer));
        case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: return put(found.sync_memops ? 1U : 0U);
        case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE: return put(0U);
        case CU_POINTER_ATTRIBUTE_BUFFER_ID: return put(found.id);
        case CU_POINTER_ATTRIBUTE_IS_MANAGED: return put(found.kind == MemoryKind::managed ? 1U : 0U);
        case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: return put(found.device);
        case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
            return put(found.kind == MemoryKind::mapped ? reservation_of(pointer).first : found.begin);
        case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
            return put(static_cast<size_t>(found.kind == MemoryKind::mapped ? reservation_of(pointer).second
                                                                            : found.size_bytes));
        case CU_POINTER_ATTRIBUTE_MAPPED: return put(1U);
        case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
            return put(static_cast<unsigned long long>(
                found.kind == MemoryKind::mapped ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : 0));
        case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS: return put(3U);
        case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: return put(reinterpret_cast<CUmemoryPool>(found.pool.get()));
        default: return CUDA_ERROR_INVALID_VALUE;
    }
}

}  // namespace

extern "C" {

CUresult CUDAAPI cuMemGetInfo_v2(size_t* free_bytes, size_t* total_bytes) {
    SOFTGPU_CONTEXT(context);
    if (free_bytes == nullptr || total_bytes == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *total_bytes = context->device->total_bytes;
    *free_bytes = *total_bytes - std::min<std::uint64_t>(*total_bytes, context->device->used_bytes.load());
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemAlloc_v2(CUdeviceptr* pointer, size_t bytes) {
    SOFTGPU_CONTEXT(context);
    SOFTGPU_NOT_WHILE_CAPTURING();
    SOFTGPU_NOT_NULL(pointer);
    std::uint64_t address = 0;
    const CUresult result = allocate({context.get(), bytes, MemoryKind::device, 0, nullptr}, address);
    if (result == CUDA_SUCCESS) {
        *pointer = address;
    }
    return result;
}

CUresult CUDAAPI cuMemAllocPitch_v2(CUdeviceptr* pointer, size_t* pitch, size_t width, size_t height,
                                    unsigned element) {
    SOFTGPU_CONTEXT(context);
    SOFTGPU_NOT_WHILE_CAPTURING();
    if (pointer == nullptr || pitch == nullptr || width == 0 || height == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (element != 4 && element != 8 && element != 16) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (width > (std::size_t{1} << 40) || height > (std::size_t{1} << 31)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    const size_t row = (width + 511) / 512 * 512;
    std::uint64_t bytes = 0, address = 0;
    if (__builtin_mul_overflow(row, height, &bytes)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    const CUresult result = allocate({context.get(), bytes, MemoryKind::device, 0, nullptr}, address);
    if (result == CUDA_SUCCESS) {
        *pointer = address, *pitch = row;
    }
    return result;
}

CUresult CUDAAPI cuMemFree_v2(CUdeviceptr pointer) {
    return free_of_kind(pointer, false);
}

CUresult CUDAAPI cuMemAllocManaged(CUdeviceptr* pointer, size_t bytes, unsigned flags) {
    SOFTGPU_CONTEXT(context);
    SOFTGPU_NOT_WHILE_CAPTURING();
    SOFTGPU_NOT_NULL(pointer);
    if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    std::uint64_t address = 0;
    const CUresult result = allocate({context.get(), bytes, MemoryKind::managed, flags, nullptr}, address);
    if (result == CUDA_SUCCESS) {
        *pointer = address;
    }
    return result;
}

CUresult CUDAAPI cuMemHostAlloc(void** pointer, size_t bytes, unsigned flags) {
    SOFTGPU_CONTEXT(context);
    SOFTGPU_NOT_WHILE_CAPTURING();
    SOFTGPU_NOT_NULL(pointer);
    if ((flags & ~7U) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    std::uint64_t address = 0;
    if (bytes == 0) {
        *pointer = nullptr;
        return CUDA_SUCCESS;
    }
    const CUresult result = allocate({context.get(), bytes, MemoryKind::host, flags, nullptr}, address);
    if (result == CUDA_SUCCESS) {
        *pointer = reinterpret_cast<void*>(address);
    }
    return result;
}

CUresult CUDAAPI cuMemAllocHost_v2(void** pointer, size_t bytes) {
    return cuMemHostAlloc(pointer, bytes, 0);
}

CUresult CUDAAPI cuMemFreeHost(void* pointer) {
    return free_of_kind(reinterpret_cast<std::uint64_t>(pointer), true);
}

CUresult CUDAAPI cuMemHostRegister_v2(void* pointer, size_t bytes, unsigned flags) {
    SOFTGPU_CONTEXT(context);
    SOFTGPU_NOT_WHILE_CAPTURING();
    if (pointer == nullptr || bytes == 0 || (flags & ~15U) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const auto begin = reinterpret_cast<std::uint64_t>(pointer);
    if (AddressSpace::instance().touches(begin, bytes)) {
        Allocation found;  // memory of another kind cannot be registered
        return state().allocations.find(begin, found) && found.kind != MemoryKind::registered
                   ? CUDA_ERROR_INVALID_VALUE
                   : CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    }
    state().allocations.add({begin, bytes, MemoryKind::registered, context.get(), context->device->ordinal, flags,
                             state().next_id.fetch_add(1), 0, nullptr, nullptr});
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemHostUnregister(void* pointer) {
    SOFTGPU_CONTEXT(context);
    SOFTGPU_NOT_WHILE_CAPTURING();
    Allocation found;
    const auto begin = reinterpret_cast<std::uint64_t>(pointer);
    SOFTGPU_NOT_NULL(pointer);
    if (!state().allocations.find(begin, found)) {
        return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    }
    if (found.begin != begin || found.kind != MemoryKind::registered) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    found.context->synchronize_exclusively();
    return state().allocations.remove(begin, found) ? CUDA_SUCCESS : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}

CUresult CUDAAPI cuMemHostGetDevicePointer_v2(CUdeviceptr* device, void* pointer, unsigned flags) {
    SOFTGPU_CONTEXT(context);
    if (device == nullptr || flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    Allocation found;
    const auto address = reinterpret_cast<std::uint64_t>(pointer);
    if (!state().allocations.find(address, found) || !found.on_host()) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *device = address;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemHostGetFlags(unsigned* flags, void* pointer) {
    SOFTGPU_CONTEXT(context);
    SOFTGPU_NOT_NULL(flags);
    Allocation found;
    if (!state().allocations.find(reinterpret_cast<std::uint64_t>(pointer), found) || !found.on_host()) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    // All host memory is mapped, since addresses are unified. Of registered memory's flags the driver returns one.
    const unsigned returned = found.kind == MemoryKind::host ? found.flags : found.flags & CU_MEMHOSTREGISTER_PORTABLE;
    *flags = returned | CU_MEMHOSTALLOC_DEVICEMAP;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* size, CUdeviceptr pointer) {
    SOFTGPU_CONTEXT(context);
    Allocation found;
    if (!state().allocations.find(pointer, found)) {
        return CUDA_ERROR_NOT_FOUND;
    }
    if (base != nullptr) {
        *base = found.begin;
    }
    if (size != nullptr) {
        *size = found.size_bytes;
    }
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuPointerSetAttribute(const void* value, CUpointer_attribute attribute, CUdeviceptr pointer) {
    SOFTGPU_CONTEXT(context);
    SOFTGPU_NOT_WHILE_CAPTURING();
    if (value == nullptr || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return state().allocations.set_sync_memops(pointer, *static_cast<const int*>(value) != 0)
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr pointer) {
    SOFTGPU_READY();
    SOFTGPU_NOT_NULL(data);
    return pointer_attribute(data, attribute, pointer);
}

CUresult CUDAAPI cuPointerGetAttributes(unsigned count, CUpointer_attribute* attributes, void** data,
                                        CUdeviceptr pointer) {
    SOFTGPU_READY();
    if (count == 0 || attributes == nullptr || data == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (unsigned i = 0; i < count; ++i) {
        if (data[i] == nullptr) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        // An unknown pointer is not an error here; its attributes are zero.
        if (pointer_attribute(data[i], attributes[i], pointer) == CUDA_SUCCESS) {
            continue;
        }
        const bool four =
            attributes[i] == CU_POINTER_ATTRIBUTE_MEMORY_TYPE || attributes[i] == CU_POINTER_ATTRIBUTE_IS_MANAGED ||
            attributes[i] == CU_POINTER_ATTRIBUTE_MAPPED || attributes[i] == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS;
        if (attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) {
            const int none = -2;
            std::memcpy(data[i], &none, sizeof none);
        } else {
            std::memset(data[i], 0, four ? 4 : 8);
        }
    }
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemAdvise_v2(CUdeviceptr pointer, size_t bytes, CUmem_advise, CUmemLocation) {
    SOFTGPU_CONTEXT(context);
    Allocation found;
    if (bytes == 0 || !state().allocations.find(pointer, found)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;  // host and device share one memory
}

CUresult CUDAAPI cuMemPrefetchAsync_v2(CUdeviceptr pointer, size_t bytes, CUmemLocation, unsigned, CUstream handle) {
    SOFTGPU_STREAM(handle, stream);
    Allocation found;
    if (bytes == 0 || !state().allocations.find(pointer, found)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

}  // extern "C"
