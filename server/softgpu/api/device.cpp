// Devices: count, sizes and attributes.
#include <pthread.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "common/visible_devices.h"
#include "server/softgpu/api/array.h"
#include "server/softgpu/api/export_tables.h"
#include "server/softgpu/api/functions.h"
#include "server/softgpu/api/objects.h"
#include "server/softgpu/api/settings.h"
#include "server/softgpu/exec/grid.h"

namespace gpupool::softgpu {
namespace {

constexpr const char* kDeviceName = "gpupool software GPU";

// Stable and unique per device: the name's bytes and the ordinal.
CUuuid uuid_of(int ordinal) {
    CUuuid result;
    std::memcpy(result.bytes, "gpupool-softgpu", 15);
    result.bytes[15] = static_cast<char>(ordinal);
    return result;
}

void create_devices() GP_REQUIRES(state_mutex()) {
    std::vector<DeviceUuid> uuids;
    for (int number = 0; number < settings().devices; ++number) {
        const CUuuid uuid = uuid_of(number);
        std::memcpy(uuids.emplace_back().data(), uuid.bytes, sizeof uuid.bytes);
    }
    const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
    const std::optional<std::string> wanted = visible == nullptr ? std::nullopt : std::optional<std::string>(visible);
    for (const int number : visible_devices(wanted, uuids)) {
        const int ordinal = static_cast<int>(state().devices.size());
        auto device = std::make_unique<Device>();
        device->ordinal = ordinal;
        device->number = number;
        device->total_bytes = settings().memory_bytes;
        device->default_pool = std::make_shared<MemoryPool>();
        device->default_pool->device = ordinal;
        device->default_pool->is_default = true;
        device->current_pool = device->default_pool;
        state().pools.add(device->default_pool);
        device->primary = std::make_shared<Context>();
        device->primary->device = device.get();
        device->primary->primary = true;
        device->primary->api_version = 3020;
        state().contexts.add(device->primary);
        state().devices.push_back(std::move(device));
    }
}

// Values of attributes. An unlisted attribute is 0, as for a feature that the device lacks.
int attribute_value(int attribute) {
    switch (attribute) {
        case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
        case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X:
        case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y: return 1024;
        case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z: return 64;
        case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X: return 2147483647;
        case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y:
        case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z: return 65535;
        case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK: return 49152;
        case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: return 232448;
        case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: return 233472;
        case CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK: return 1024;
        case CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY: return 65536;
        case CU_DEVICE_ATTRIBUTE_WARP_SIZE: return 32;
        case CU_DEVICE_ATTRIBUTE_MAX_PITCH: return 2147483647;
        case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK:
        case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR: return 65536;
        case CU_DEVICE_ATTRIBUTE_KERNEL_EXEC_TIMEOUT: return settings().kernel_limit.count() != 0 ? 1 : 0;
        case CU_DEVICE_ATTRIBUTE_CLOCK_RATE: return 1000000;
        case CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT:
        case CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT: return 512;
        case CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT: return 32;
        case CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_WIDTH:
        case CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_WIDTH:
        case CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_WIDTH:
        case CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_WIDTH: return 131072;
        case CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_HEIGHT:
        case CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_HEIGHT: return 65536;
        case CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_HEIGHT: return 65000;
        case CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_PITCH: return 2097120;
        case CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LINEAR_WIDTH: return 1 << 28;
        case CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_WIDTH:
        case CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_HEIGHT:
        case CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_DEPTH:
        case CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_WIDTH:
        case CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_HEIGHT:
        case CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_DEPTH: return 16384;
        case CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LAYERED_WIDTH:
        case CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_WIDTH:
        case CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_HEIGHT:
        case CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURECUBEMAP_WIDTH:
        case CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURECUBEMAP_LAYERED_WIDTH:
        case CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_GATHER_WIDTH:
        case CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_GATHER_HEIGHT:
        case CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_MIPMAPPED_WIDTH:
        case CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_MIPMAPPED_WIDTH:
        case CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_MIPMAPPED_HEIGHT:
        case CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_WIDTH:
        case CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_LAYERED_WIDTH:
        case CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_LAYERED_WIDTH:
        case CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_LAYERED_HEIGHT:
        case CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACECUBEMAP_WIDTH:
        case CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACECUBEMAP_LAYERED_WIDTH: return 32768;
        case CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LAYERED_LAYERS:
        case CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_LAYERS:
        case CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_LAYERED_LAYERS:
        case CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_LAYERED_LAYERS: return 2048;
        case CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURECUBEMAP_LAYERED_LAYERS:
        case CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACECUBEMAP_LAYERED_LAYERS: return 2046;
        case CU_DEVICE_ATTRIBUTE_GPU_OVERLAP:
        case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
        case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
        case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
        case CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY:
        case CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH:
        case CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH:
        case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
        case CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR:
        case CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS:
        case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED: return 1;
        case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT: return 2;
        case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: return static_cast<int>(processor_count());
        case CU_DEVICE_ATTRIBUTE_COMPUTE_MODE: return CU_COMPUTEMODE_DEFAULT;
        case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE: return 1000000;
        case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH: return 128;
        case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: return 4 << 20;
        case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR: return Context::kThreadsPerProcessor;
        case CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR: return 32;
        case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: return static_cast<int>(kOwnArchitecture / 10);
        case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: return static_cast<int>(kOwnArchitecture % 10);
        case CU_DEVICE_ATTRIBUTE_SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO: return 2;
        default: return 0;
    }
}

}  // namespace
}  // namespace gpupool::softgpu

using namespace gpupool::softgpu;

extern "C" {

CUresult CUDAAPI cuInit(unsigned int flags) {
    if (flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (state().forked.load()) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    const Lock lock(state_mutex());
    if (!state().initialised.load()) {
        if (state().devices.empty()) {
            create_devices();
        }
        if (state().devices.empty()) {
            return CUDA_ERROR_NO_DEVICE;
        }
        // The child has none of the threads, and locks may be held forever. So all its calls are refused.
        pthread_atfork(nullptr, nullptr, [] {
            state().forked = true;
            state().initialised = false;
        });
        state().initialised.store(true, std::memory_order_release);
        install_export_tables();
    }
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDriverGetVersion(int* version) {
    SOFTGPU_NOT_NULL(version);
    *version = 13000;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetCount(int* count) {
    SOFTGPU_READY();
    SOFTGPU_NOT_NULL(count);
    *count = static_cast<int>(state().devices.size());
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGet(CUdevice* device, int ordinal) {
    SOFTGPU_NOT_NULL(device);
    Device* found;
    if (const CUresult error = find_device(ordinal, found); error != CUDA_SUCCESS) {
        return error;
    }
    *device = ordinal;
    return CUDA_SUCCESS;
}

#define SOFTGPU_DEVICE(device, name) \
    Device* name;                    \
    if (const CUresult found_ = find_device(device, name); found_ != CUDA_SUCCESS) return found_

CUresult CUDAAPI cuDeviceGetName(char* name, int length, CUdevice device) {
    SOFTGPU_DEVICE(device, found);
    if (name == nullptr || length <= 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    std::strncpy(name, kDeviceName, static_cast<std::size_t>(length));
    name[length - 1] = '\0';
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
    SOFTGPU_DEVICE(device, found);
    SOFTGPU_NOT_NULL(uuid);
    *uuid = uuid_of(found->number);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
    return cuDeviceGetUuid(uuid, device);
}

CUresult CUDAAPI cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) {
    SOFTGPU_DEVICE(device, found);
    SOFTGPU_NOT_NULL(bytes);
    *bytes = found->total_bytes;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
    SOFTGPU_DEVICE(device, found);
    SOFTGPU_NOT_NULL(value);
    if (attribute <= 0 || attribute >= CU_DEVICE_ATTRIBUTE_MAX) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    // Each device has its own bus number.
    *value = attribute == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID ? found->number + 1 : attribute_value(attribute);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceComputeCapability(int* major, int* minor, CUdevice device) {
    SOFTGPU_DEVICE(device, found);
    if (major == nullptr || minor == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *major = 9;
    *minor = 0;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetProperties(CUdevprop* properties, CUdevice device) {
    SOFTGPU_DEVICE(device, found);
    SOFTGPU_NOT_NULL(properties);
    *properties = {1024, {1024, 1024, 64}, {2147483647, 65535, 65535}, 49152, 65536, 32, 2147483647, 65536, 1000000,
                   512};
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetPCIBusId(char* text, int length, CUdevice device) {
    SOFTGPU_DEVICE(device, found);
    if (text == nullptr || length < 13) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    std::snprintf(text, static_cast<std::size_t>(length), "0000:%02X:00.0",
                  static_cast<unsigned>(found->number + 1) & 0xFF);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetByPCIBusId(CUdevice* device, const char* text) {
    SOFTGPU_READY();
    if (device == nullptr || text == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    unsigned domain = 0, bus = 0, slot = 0;
    if (std::sscanf(text, "%x:%x:%x", &domain, &bus, &slot) != 3 && std::sscanf(text, "%x:%x", &bus, &slot) != 2) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (const auto& known : state().devices) {
        if (domain == 0 && slot == 0 && bus == static_cast<unsigned>(known->number) + 1) {
            *device = known->ordinal;
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_INVALID_DEVICE;
}

CUresult CUDAAPI cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
    SOFTGPU_DEVICE(device, first);
    SOFTGPU_DEVICE(peer, second);
    SOFTGPU_NOT_NULL(can);
    *can = first != second ? 1 : 0;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute attribute, CUdevice from, CUdevice to) {
    SOFTGPU_DEVICE(from, first);
    SOFTGPU_DEVICE(to, second);
    SOFTGPU_NOT_NULL(value);
    if (first == second) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    switch (attribute) {
        case CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK: *value = 0; break;
        case CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED:
        case CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED: *value = 1; break;
        case CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED:
        case CU_DEVICE_P2P_ATTRIBUTE_ONLY_PARTIAL_NATIVE_ATOMIC_SUPPORTED: *value = 0; break;
        default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetTexture1DLinearMaxWidth(size_t* elements, CUarray_format format, unsigned channels,
                                                    CUdevice device) {
    SOFTGPU_DEVICE(device, found);
    const std::size_t bytes = channel_bytes(format) * channels;
    if (elements == nullptr || bytes == 0 || (channels != 1 && channels != 2 && channels != 4)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    // As an H200: 2^30 elements in 2^32 bytes.
    *elements = std::min(std::size_t{1} << 30, (std::size_t{1} << 32) / bytes);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetLuid(char* luid, unsigned* node_mask, CUdevice device) {
    Device* found;
    if (const CUresult error = find_device(device, found); error != CUDA_SUCCESS) {
        return error;
    }
    return luid == nullptr || node_mask == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_SUPPORTED;
}

// As a GPU on PCIe: no atomic operation reaches beyond the device.
CUresult CUDAAPI cuDeviceGetHostAtomicCapabilities(unsigned* capabilities, const CUatomicOperation* operations,
                                                   unsigned count, CUdevice device) {
    Device* found;
    if (const CUresult error = find_device(device, found); error != CUDA_SUCCESS) {
        return error;
    }
    if (capabilities == nullptr || operations == nullptr || count == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (unsigned i = 0; i < count; ++i) {
        capabilities[i] = 0;
        if (operations[i] < 0 || operations[i] >= CU_ATOMIC_OPERATION_MAX) {
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetP2PAtomicCapabilities(unsigned* capabilities, const CUatomicOperation* operations,
                                                  unsigned count, CUdevice from, CUdevice to) {
    Device* found;
    if (const CUresult error = find_device(to, found); error != CUDA_SUCCESS) {
        return error;
    }
    return from == to ? CUDA_ERROR_INVALID_DEVICE
                      : cuDeviceGetHostAtomicCapabilities(capabilities, operations, count, from);
}

CUresult CUDAAPI cuDeviceGetExecAffinitySupport(int* supported, CUexecAffinityType, CUdevice device) {
    SOFTGPU_DEVICE(device, found);
    SOFTGPU_NOT_NULL(supported);
    *supported = 0;
    return CUDA_SUCCESS;
}

}  // extern "C"
