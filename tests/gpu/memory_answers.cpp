// Answers at the edges of memory, as driver 580 gives them on an H200.
#include <cstdlib>
#include <vector>

#include "tests/gpu/driver.h"
#include "tests/gpu/memory.h"

namespace gpupool::programs {

void no_bytes() {
    CUdeviceptr address = 77;
    CUmemoryPool pool = nullptr;
    void* host = &pool;
    DRIVER_OK(cuDeviceGetDefaultMemPool(&pool, 0));
    check_result(cuMemAlloc(&address, 0), CUDA_ERROR_INVALID_VALUE, "cuMemAlloc of no bytes");
    DRIVER_OK(cuMemAllocAsync(&address, 0, nullptr));
    check(address == 0, "cuMemAllocAsync of no bytes gives the null address");
    address = 77;
    DRIVER_OK(cuMemAllocFromPoolAsync(&address, 0, pool, nullptr));
    check(address == 0, "so does cuMemAllocFromPoolAsync");
    check_result(cuMemAllocAsync(nullptr, 0, nullptr), CUDA_ERROR_INVALID_VALUE, "no place for the address");
    check_result(cuMemAllocAsync(nullptr, 64, nullptr), CUDA_ERROR_INVALID_VALUE,
                 "no place for an address of 64 bytes");
    check_result(cuMemAllocFromPoolAsync(nullptr, 64, pool, nullptr), CUDA_ERROR_INVALID_VALUE, "the same of a pool");
    DRIVER_OK(cuMemFreeAsync(0, nullptr));
    DRIVER_OK(cuMemFree(0));
    DRIVER_OK(cuMemHostAlloc(&host, 0, 0));
    DRIVER_OK(cuMemFreeHost(nullptr));
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    CUmemGenericAllocationHandle handle = 0;
    check_result(cuMemCreate(&handle, 0, &properties, 0), CUDA_ERROR_INVALID_VALUE, "cuMemCreate of no bytes");
    check_result(cuMemAddressReserve(&address, 0, 0, 0, 0), CUDA_ERROR_INVALID_VALUE, "a reservation of no bytes");
}

void unregistering() {
    constexpr size_t kBytes = 32768;
    char* const memory = static_cast<char*>(aligned_alloc(4096, 2 * kBytes));
    void* allocated = nullptr;
    CUdeviceptr device = 0;
    DRIVER_OK(cuMemAllocHost(&allocated, kBytes));
    DRIVER_OK(cuMemAlloc(&device, kBytes));
    check_result(cuMemHostUnregister(memory), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "memory that CUDA does not know");
    check_result(cuMemHostUnregister(nullptr), CUDA_ERROR_INVALID_VALUE, "null");
    DRIVER_OK(cuMemHostRegister(memory, kBytes, 0));
    check_result(cuMemHostUnregister(memory + 4096), CUDA_ERROR_INVALID_VALUE, "the middle of a registered range");
    check_result(cuMemHostUnregister(memory + kBytes - 1), CUDA_ERROR_INVALID_VALUE, "its last byte");
    check_result(cuMemHostUnregister(memory + kBytes), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "what follows it");
    check_result(cuMemHostUnregister(allocated), CUDA_ERROR_INVALID_VALUE, "memory of cuMemAllocHost");
    check_result(cuMemHostUnregister(reinterpret_cast<void*>(device)), CUDA_ERROR_INVALID_VALUE, "device memory");
    check_result(cuMemHostUnregister(memory), CUDA_SUCCESS, "the registered range");
    check_result(cuMemHostUnregister(memory), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "the same again");
    DRIVER_OK(cuMemFreeHost(allocated));
    DRIVER_OK(cuMemFree(device));
    free(memory);
}

void range_of_a_mapping() {
    constexpr size_t kPart = 2u << 20;
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    CUmemGenericAllocationHandle handle = 0;
    CUdeviceptr reserved = 0, base = 0;
    size_t bytes = 0;
    DRIVER_OK(cuMemCreate(&handle, 2 * kPart, &properties, 0));
    DRIVER_OK(cuMemAddressReserve(&reserved, 4 * kPart, 0, 0, 0));
    DRIVER_OK(cuMemMap(reserved + kPart, 2 * kPart, 0, handle, 0));
    check_result(cuMemGetAddressRange(&base, &bytes, reserved + kPart), CUDA_ERROR_NOT_FOUND,
                 "the range of mapped memory before access was set");
    const CUmemAccessDesc access{properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    DRIVER_OK(cuMemSetAccess(reserved + kPart, 2 * kPart, &access, 1));
    DRIVER_OK(cuMemGetAddressRange(&base, &bytes, reserved + kPart + 5));
    check(base == reserved + kPart && bytes == 2 * kPart, "the range of mapped memory is the mapping");
    DRIVER_OK(cuPointerGetAttribute(&base, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, reserved + kPart + 5));
    DRIVER_OK(cuPointerGetAttribute(&bytes, CU_POINTER_ATTRIBUTE_RANGE_SIZE, reserved + kPart + 5));
    check(base == reserved && bytes == 4 * kPart, "by its attributes it is the reservation: %zu bytes", bytes);
    check_result(cuMemGetAddressRange(&base, &bytes, reserved), CUDA_ERROR_NOT_FOUND, "where nothing is mapped");
    DRIVER_OK(cuMemUnmap(reserved + kPart, 2 * kPart));
    DRIVER_OK(cuMemAddressFree(reserved, 4 * kPart));
    DRIVER_OK(cuMemRelease(handle));
}

namespace {

// Fills and copies that reach beyond the end of an allocation are refused at once.
void ends_after(const char* kind, CUdeviceptr memory, size_t bytes) {
    static std::vector<unsigned char> host(7u << 20);
    check_result(cuMemsetD8Async(memory + bytes - 16, 0, 16, nullptr), CUDA_SUCCESS, kind);
    for (const size_t more : {size_t{1}, size_t{512}, size_t{2} << 20}) {
        check_result(cuMemsetD8(memory, 0, bytes + more), CUDA_ERROR_INVALID_VALUE, kind);
        check_result(cuMemsetD8Async(memory + bytes - 1, 0, 1 + more, nullptr), CUDA_ERROR_INVALID_VALUE, kind);
        check_result(cuMemcpyHtoDAsync(memory, host.data(), bytes + more, nullptr), CUDA_ERROR_INVALID_VALUE, kind);
        check_result(cuMemcpyDtoH(host.data(), memory, bytes + more), CUDA_ERROR_INVALID_VALUE, kind);
        check_result(cuMemcpyDtoDAsync(memory, memory, bytes + more, nullptr), CUDA_ERROR_INVALID_VALUE, kind);
    }
    // Two rows, the second of which reaches beyond the end.
    CUDA_MEMCPY2D rows{};
    rows.srcMemoryType = CU_MEMORYTYPE_HOST;
    rows.srcHost = host.data();
    rows.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    rows.dstDevice = memory;
    rows.dstPitch = bytes - 64;
    rows.WidthInBytes = 65;
    rows.Height = 2;
    check_result(cuMemcpy2D(&rows), CUDA_ERROR_INVALID_VALUE, kind);
    check_result(cuMemcpy2DAsync(&rows, nullptr), CUDA_ERROR_INVALID_VALUE, kind);
    rows.WidthInBytes = 64;
    check_result(cuMemcpy2D(&rows), CUDA_SUCCESS, kind);
    check_result(cuCtxSynchronize(), CUDA_SUCCESS, kind);
}

}  // namespace

void ends() {
    constexpr size_t kBytes = 4096, kPart = 2u << 20;
    CUdeviceptr memory = 0, next = 0;
    DRIVER_OK(cuMemAlloc(&memory, kBytes));
    ends_after("the end of memory of cuMemAlloc", memory, kBytes);
    DRIVER_OK(cuMemFree(memory));

    DRIVER_OK(cuMemAllocAsync(&memory, kBytes, nullptr));
    ends_after("the end of memory of the default pool", memory, kBytes);
    DRIVER_OK(cuMemFree(memory));

    CUmemPoolProps of_device{};
    of_device.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    of_device.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    CUmemoryPool pool = nullptr;
    DRIVER_OK(cuMemPoolCreate(&pool, &of_device));
    DRIVER_OK(cuMemAllocFromPoolAsync(&memory, kBytes, pool, nullptr));
    DRIVER_OK(cuMemAllocFromPoolAsync(&next, kBytes, pool, nullptr));  // in the same block of the pool
    ends_after("the end of memory of another pool", memory, kBytes);
    DRIVER_OK(cuMemFree(memory));
    DRIVER_OK(cuMemFree(next));
    DRIVER_OK(cuMemPoolDestroy(pool));

    CUgraph graph = nullptr;
    CUgraphNode node = nullptr;
    CUgraphExec executable = nullptr;
    CUDA_MEM_ALLOC_NODE_PARAMS allocation{};
    allocation.poolProps = of_device;
    allocation.bytesize = kBytes;
    DRIVER_OK(cuGraphCreate(&graph, 0));
    DRIVER_OK(cuGraphAddMemAllocNode(&node, graph, nullptr, 0, &allocation));
    DRIVER_OK(cuGraphInstantiate(&executable, graph, 0));
    DRIVER_OK(cuGraphLaunch(executable, nullptr));
    ends_after("the end of memory of a graph", allocation.dptr, kBytes);
    DRIVER_OK(cuMemFree(allocation.dptr));
    DRIVER_OK(cuGraphExecDestroy(executable));
    DRIVER_OK(cuGraphDestroy(graph));

    // Two mappings side by side count as one piece of memory.
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = of_device.location;
    CUmemGenericAllocationHandle first = 0, second = 0;
    DRIVER_OK(cuMemCreate(&first, kPart, &properties, 0));
    DRIVER_OK(cuMemCreate(&second, kPart, &properties, 0));
    DRIVER_OK(cuMemAddressReserve(&memory, 4 * kPart, 0, 0, 0));
    DRIVER_OK(cuMemMap(memory, kPart, 0, first, 0));
    DRIVER_OK(cuMemMap(memory + kPart, kPart, 0, second, 0));
    const CUmemAccessDesc access{properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    DRIVER_OK(cuMemSetAccess(memory, 2 * kPart, &access, 1));
    check_result(cuMemsetD8(memory, 3, 2 * kPart), CUDA_SUCCESS, "a fill of two mappings");
    ends_after("the end of the second mapping", memory, 2 * kPart);
    DRIVER_OK(cuMemUnmap(memory, 2 * kPart));
    DRIVER_OK(cuMemAddressFree(memory, 4 * kPart));
    DRIVER_OK(cuMemRelease(first));
    DRIVER_OK(cuMemRelease(second));
}

}  // namespace gpupool::programs
