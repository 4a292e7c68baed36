// Answers at the edges of memory, as driver 580 gives them on an H200.
#include <cstdlib>

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

}  // namespace gpupool::programs
