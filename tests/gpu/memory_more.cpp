#include <unistd.h>

#include <algorithm>
#include <cstdint>

#include "tests/gpu/memory.h"

namespace gpupool::programs {

namespace {

CUmemAllocationProp on_device(CUdevice device) {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = device;
    return properties;
}

bool is_filled(CUdeviceptr address, size_t words, unsigned value) {
    std::vector<unsigned> back(words);
    DRIVER_OK(cuMemcpyDtoH(back.data(), address, words * sizeof(unsigned)));
    return std::all_of(back.begin(), back.end(), [&](unsigned seen) { return seen == value; });
}

}  // namespace

// Memory that is exported and imported in the same process: both handles stand for it.
void exported_memory(const Device& device) {
    if (device.attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) == 0) {
        note("this device has no virtual memory management");
        return;
    }
    CUmemAllocationProp properties = on_device(device.device());
    size_t bytes = 0;
    DRIVER_OK(cuMemGetAllocationGranularity(&bytes, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    constexpr auto kDescriptor = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    int descriptor = -1;
    CUmemGenericAllocationHandle plain = 0, memory = 0, imported = 0;
    DRIVER_OK(cuMemCreate(&plain, bytes, &properties, 0));
    check_result(cuMemExportToShareableHandle(&descriptor, plain, kDescriptor, 0), CUDA_ERROR_INVALID_VALUE,
                 "export of memory that was made without a handle type");
    DRIVER_OK(cuMemRelease(plain));
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_WIN32;
    check_result(cuMemCreate(&memory, bytes, &properties, 0), CUDA_ERROR_INVALID_VALUE, "a handle type of Windows");

    properties.requestedHandleTypes = kDescriptor;
    CUdeviceptr range = 0;
    DRIVER_OK(cuMemAddressReserve(&range, 2 * bytes, 0, 0, 0));
    const CUmemAccessDesc access = {properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    for (const bool original_first : {true, false}) {
        DRIVER_OK(cuMemCreate(&memory, bytes, &properties, 0));
        DRIVER_OK(cuMemExportToShareableHandle(&descriptor, memory, kDescriptor, 0));
        DRIVER_OK(cuMemImportFromShareableHandle(
            &imported, reinterpret_cast<void*>(static_cast<std::intptr_t>(descriptor)), kDescriptor));
        close(descriptor);
        DRIVER_OK(cuMemMap(range, bytes, 0, memory, 0));
        DRIVER_OK(cuMemMap(range + bytes, bytes, 0, imported, 0));
        DRIVER_OK(cuMemSetAccess(range, 2 * bytes, &access, 1));
        DRIVER_OK(cuMemsetD32(range, 77, 256));
        check(is_filled(range + bytes, 256, 77), "imported memory is the exported memory");
        DRIVER_OK(cuMemRelease(original_first ? memory : imported));
        DRIVER_OK(cuMemUnmap(original_first ? range : range + bytes, bytes));
        DRIVER_OK(cuMemsetD32(original_first ? range + bytes : range, 78, 256));
        check(is_filled(original_first ? range + bytes : range, 256, 78), "it stays when one handle is released");
        DRIVER_OK(cuMemRelease(original_first ? imported : memory));
        DRIVER_OK(cuMemUnmap(original_first ? range + bytes : range, bytes));
    }
    DRIVER_OK(cuMemAddressFree(range, 2 * bytes));

    // A pool that cannot be exported is refused when it is made.
    CUmemPoolProps pool_properties{};
    pool_properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    pool_properties.location = properties.location;
    pool_properties.handleTypes = kDescriptor;
    CUmemoryPool pool = nullptr;
    const bool shared = device.attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED) != 0 &&
                        (device.attribute(CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES) & kDescriptor) != 0;
    check_result(cuMemPoolCreate(&pool, &pool_properties), shared ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED,
                 "a pool that can be exported");
    if (shared) {
        DRIVER_OK(cuMemPoolDestroy(pool));
    }
}

// The device's attributes say which allocations of the host's memory work.
void memory_of_the_host(const Device& device) {
    CUmemPoolProps in_pool{};
    in_pool.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    in_pool.location.type = CU_MEM_LOCATION_TYPE_HOST;
    CUmemoryPool pool = nullptr;
    const bool pools = device.attribute(CU_DEVICE_ATTRIBUTE_HOST_MEMORY_POOLS_SUPPORTED) != 0;
    check_result(cuMemPoolCreate(&pool, &in_pool), pools ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED,
                 "a pool of host memory");
    if (pools) {
        DRIVER_OK(cuMemPoolDestroy(pool));
    }

    CUmemAllocationProp mapped{};
    mapped.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    mapped.location.type = CU_MEM_LOCATION_TYPE_HOST;
    constexpr size_t kBytes = 2 << 20;
    CUmemGenericAllocationHandle memory = 0;
    const bool maps = device.attribute(CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) != 0;
    check_result(cuMemCreate(&memory, kBytes, &mapped, 0), maps ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED,
                 "host memory by cuMemCreate");
    if (maps) {
        DRIVER_OK(cuMemRelease(memory));
    }
}

void virtual_memory(const Device& device, const Module& module) {
    if (device.attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) == 0) {
        note("this device has no virtual memory management");
        return;
    }
    const CUmemAllocationProp properties = on_device(device.device());
    size_t granularity = 0;
    DRIVER_OK(cuMemGetAllocationGranularity(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    check(granularity > 0 && (granularity & (granularity - 1)) == 0, "granularity of %zu bytes", granularity);

    CUdeviceptr range = 0;
    DRIVER_OK(cuMemAddressReserve(&range, 8 * granularity, 0, 0, 0));
    CUmemGenericAllocationHandle first = 0, second = 0;
    DRIVER_OK(cuMemCreate(&first, granularity, &properties, 0));
    DRIVER_OK(cuMemCreate(&second, granularity, &properties, 0));
    DRIVER_OK(cuMemMap(range, granularity, 0, first, 0));
    DRIVER_OK(cuMemMap(range + granularity, granularity, 0, second, 0));
    CUmemAccessDesc access{};
    access.location = properties.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    DRIVER_OK(cuMemSetAccess(range, 2 * granularity, &access, 1));
    unsigned long long flags = 0;
    DRIVER_OK(cuMemGetAccess(&flags, &properties.location, range));
    check(flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE, "access as it was set");

    // A memset, a kernel and a copy access memory across the boundary of the two allocations.
    constexpr unsigned kWords = 2048;
    const CUdeviceptr border = range + granularity - kWords / 2 * sizeof(unsigned);
    DRIVER_OK(cuMemsetD32(border, 7, kWords));
    DRIVER_OK(launch(module.function("add_value"), kWords / 256, 256, nullptr, border, kWords, 35u));
    check(is_filled(border, kWords, 42), "two allocations side by side act as one");

    CUmemAllocationProp seen{};
    DRIVER_OK(cuMemGetAllocationPropertiesFromHandle(&seen, first));
    check(seen.type == properties.type && seen.location.id == device.device(), "properties of a handle");
    CUmemGenericAllocationHandle retained = 0;
    DRIVER_OK(cuMemRetainAllocationHandle(&retained, reinterpret_cast<void*>(range + 4)));
    note("the handle of an address %s",
         retained == first ? "is the one that was mapped" : "is another one for the same memory");
    CUmemAllocationProp of_retained{};
    check_result(cuMemGetAllocationPropertiesFromHandle(&of_retained, retained), CUDA_SUCCESS,
                 "the handle of an address");
    DRIVER_OK(cuMemRelease(retained));

    // The same allocation mapped at another address has the same data; its handle may be released while it is mapped.
    DRIVER_OK(cuMemMap(range + 4 * granularity, granularity, 0, second, 0));
    DRIVER_OK(cuMemSetAccess(range + 4 * granularity, granularity, &access, 1));
    check(is_filled(range + 4 * granularity, kWords / 2, 42), "an allocation mapped twice");
    DRIVER_OK(cuMemRelease(first));
    DRIVER_OK(cuMemRelease(second));
    check(is_filled(border, kWords, 42), "mapped memory outlives its handle");
    DRIVER_OK(cuMemUnmap(range + 4 * granularity, granularity));
    DRIVER_OK(cuMemUnmap(range, 2 * granularity));
    DRIVER_OK(cuMemAddressFree(range, 8 * granularity));
}

void stream_ordered(const Device& device, const Module& module) {
    if (device.attribute(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED) == 0) {
        note("this device has no memory pools");
        return;
    }
    constexpr unsigned kWords = 10'000;
    constexpr size_t kBytes = kWords * sizeof(unsigned);
    CUstream stream = nullptr;
    DRIVER_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    int wrong = 0;
    for (unsigned round = 0; round < 20; round++) {
        CUdeviceptr block = 0, copy = 0;
        std::vector<unsigned> back(kWords);
        DRIVER_OK(cuMemAllocAsync(&block, kBytes, stream));
        DRIVER_OK(cuMemsetD32Async(block, round, kWords, stream));
        DRIVER_OK(cuMemAllocAsync(&copy, kBytes, stream));
        DRIVER_OK(launch(module.function("copy_words"), (kWords + 255) / 256, 256, stream, block, copy, kWords));
        DRIVER_OK(cuMemFreeAsync(block, stream));
        DRIVER_OK(cuMemcpyDtoHAsync(back.data(), copy, kBytes, stream));
        DRIVER_OK(cuMemFreeAsync(copy, stream));
        DRIVER_OK(cuStreamSynchronize(stream));
        wrong += !std::all_of(back.begin(), back.end(), [&](unsigned value) { return value == round; });
    }
    check(wrong == 0, "20 rounds of allocation and free in a stream: %d wrong", wrong);
    CUdeviceptr block = 0;
    DRIVER_OK(cuMemAllocAsync(&block, kBytes, stream));
    DRIVER_OK(cuStreamSynchronize(stream));
    check_result(cuMemFree(block), CUDA_SUCCESS, "an ordinary free of stream-ordered memory");
    DRIVER_OK(cuMemAlloc(&block, kBytes));
    const CUresult freed = cuMemFreeAsync(block, stream);
    note("a stream-ordered free of ordinary memory: %s", result_name(freed).c_str());
    DRIVER_OK(freed == CUDA_SUCCESS ? cuStreamSynchronize(stream) : cuMemFree(block));
    DRIVER_OK(cuStreamDestroy(stream));
}

void memory_pools(const Device& device) {
    if (device.attribute(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED) == 0) {
        note("this device has no memory pools");
        return;
    }
    CUmemoryPool standard = nullptr, current = nullptr, own = nullptr;
    DRIVER_OK(cuDeviceGetDefaultMemPool(&standard, device.device()));
    DRIVER_OK(cuDeviceGetMemPool(&current, device.device()));
    check(standard != nullptr && standard == current, "the default pool is the current one");
    CUmemPoolProps properties{};
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = device.device();
    DRIVER_OK(cuMemPoolCreate(&own, &properties));
    cuuint64_t threshold = 1 << 20, seen = 0, used = 0, reserved = 0;
    DRIVER_OK(cuMemPoolSetAttribute(own, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
    DRIVER_OK(cuMemPoolGetAttribute(own, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &seen));
    check(seen == threshold, "a release threshold as it was set");

    CUstream stream = nullptr;
    CUdeviceptr block = 0;
    DRIVER_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    DRIVER_OK(cuMemAllocFromPoolAsync(&block, 100'000, own, stream));
    DRIVER_OK(cuMemsetD8Async(block, 1, 100'000, stream));
    DRIVER_OK(cuStreamSynchronize(stream));
    DRIVER_OK(cuMemPoolGetAttribute(own, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
    DRIVER_OK(cuMemPoolGetAttribute(own, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved));
    check(used >= 100'000 && reserved >= used, "%llu bytes used of %llu reserved",
          static_cast<unsigned long long>(used), static_cast<unsigned long long>(reserved));
    CUmemoryPool of_pointer = nullptr;
    DRIVER_OK(cuPointerGetAttribute(&of_pointer, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, block));
    check(of_pointer == own, "the pool of a pointer");
    DRIVER_OK(cuMemFreeAsync(block, stream));
    DRIVER_OK(cuStreamSynchronize(stream));
    DRIVER_OK(cuMemPoolTrimTo(own, 0));
    DRIVER_OK(cuMemPoolGetAttribute(own, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
    check(used == 0, "nothing used once freed");
    DRIVER_OK(cuMemPoolDestroy(own));
    DRIVER_OK(cuStreamDestroy(stream));
}

void host_memory(const Device& device) {
    constexpr size_t kBytes = 50'000;
    void* pinned = nullptr;
    unsigned flags = 0, type = 0;
    CUdeviceptr address = 0;
    DRIVER_OK(cuMemHostAlloc(&pinned, kBytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
    memset(pinned, 0x42, kBytes);
    DRIVER_OK(cuMemHostGetFlags(&flags, pinned));
    check((flags & CU_MEMHOSTALLOC_PORTABLE) != 0 && (flags & CU_MEMHOSTALLOC_DEVICEMAP) != 0,
          "flags of pinned memory (%u)", flags);
    DRIVER_OK(cuMemHostGetDevicePointer(&address, pinned, 0));
    check(address == reinterpret_cast<CUdeviceptr>(pinned), "its address on the device is its own");
    DRIVER_OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address));
    check(type == CU_MEMORYTYPE_HOST, "its type");
    void* host_pointer = nullptr;
    DRIVER_OK(cuPointerGetAttribute(&host_pointer, CU_POINTER_ATTRIBUTE_HOST_POINTER, address + 100));
    check(host_pointer == static_cast<char*>(pinned) + 100, "its host pointer");
    check_result(cuMemsetD8(address, 0, kBytes + 1), CUDA_ERROR_INVALID_VALUE, "a memset beyond its end");
    check_result(cuMemsetD2D32(address + kBytes - 1096, 1024, 0, 16, 3), CUDA_ERROR_INVALID_VALUE,
                 "rows of which the last one lies beyond it");
    DRIVER_OK(cuMemFreeHost(pinned));
    DRIVER_OK(cuMemAllocHost(&pinned, kBytes));
    DRIVER_OK(cuMemHostGetFlags(&flags, pinned));
    check(flags == CU_MEMHOSTALLOC_DEVICEMAP, "flags of memory of cuMemAllocHost (%u)", flags);
    DRIVER_OK(cuMemFreeHost(pinned));
    DRIVER_OK(cuMemHostAlloc(&pinned, kBytes, CU_MEMHOSTALLOC_WRITECOMBINED));
    DRIVER_OK(cuMemHostGetFlags(&flags, pinned));
    check((flags & CU_MEMHOSTALLOC_WRITECOMBINED) != 0, "flags of write-combined memory (%u)", flags);
    DRIVER_OK(cuMemFreeHost(pinned));

    // Registered memory need not start or end at a page boundary.
    std::vector<uint8_t> ordinary(kBytes, 0x24), back(kBytes);
    DRIVER_OK(cuMemHostRegister(ordinary.data() + 100, kBytes - 200, CU_MEMHOSTREGISTER_PORTABLE));
    CUdeviceptr block = 0;
    DRIVER_OK(cuMemAlloc(&block, kBytes));
    DRIVER_OK(cuMemsetD8(block, 0, kBytes));
    DRIVER_OK(cuMemcpyHtoD(block + 100, ordinary.data() + 100, kBytes - 200));
    DRIVER_OK(cuMemcpyDtoH(back.data(), block, kBytes));
    check(back[99] == 0 && back[100] == 0x24 && back[kBytes - 101] == 0x24 && back[kBytes - 100] == 0,
          "a copy from registered memory");
    DRIVER_OK(cuMemHostGetFlags(&flags, ordinary.data() + 200));
    check(flags == (CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP), "flags of registered memory (%u)",
          flags);
    check_result(cuMemcpyHtoD(block, ordinary.data() + 100, kBytes - 199), CUDA_ERROR_INVALID_VALUE,
                 "a copy from beyond the end of registered memory");
    DRIVER_OK(cuMemHostGetDevicePointer(&address, ordinary.data() + 100, 0));
    check_result(cuMemsetD8(address, 0x42, kBytes - 199), CUDA_ERROR_INVALID_VALUE,
                 "a memset beyond the end of registered memory");
    check_result(cuMemsetD8Async(address + 10, 0x42, kBytes - 209, nullptr), CUDA_ERROR_INVALID_VALUE,
                 "an asynchronous one");
    DRIVER_OK(cuMemsetD8(address, 0x42, 10));
    DRIVER_OK(cuCtxSynchronize());
    check(ordinary[99] == 0x24 && ordinary[100] == 0x42 && ordinary[109] == 0x42 && ordinary[110] == 0x24,
          "registered memory at its device address");
    if (device.attribute(CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM) != 0) {
        check(address == reinterpret_cast<CUdeviceptr>(ordinary.data() + 100),
              "the device address of registered memory");
    }
    DRIVER_OK(cuMemHostUnregister(ordinary.data() + 100));
    DRIVER_OK(cuMemFree(block));
}

}  // namespace gpupool::programs
