// Device queries, answered from the snapshot in the server's Welcome.

#include <algorithm>
#include <cctype>
#include <cstring>
#include <map>

#include "client/calls/handlers.h"
#include "client/calls/store.h"
#include "client/core/session/runtime.h"
#include "common/mutex.h"

namespace gpupool::client::entry {
namespace {

const DeviceSnapshot* snapshot(CUresult& result) {
    const Session* s = session(result);
    return s == nullptr ? nullptr : &s->devices;
}

// The device; null and the error in `result` if there is none.
const Device* find(CUdevice dev, CUresult& result) {
    const DeviceSnapshot* devices = snapshot(result);
    if (devices == nullptr) {
        return nullptr;
    }
    if (!devices->valid(dev)) {
        result = CUDA_ERROR_INVALID_DEVICE;
        return nullptr;
    }
    return &devices->devices[static_cast<std::size_t>(dev)];
}

CUresult store_text(const std::string& text, char* out, int length) {
    if (out == nullptr || length <= 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const std::size_t count = std::min(text.size(), static_cast<std::size_t>(length) - 1);
    std::memcpy(out, text.data(), count);
    out[count] = '\0';
    return CUDA_SUCCESS;
}

bool same_bus_id(std::string_view a, std::string_view b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                      [](unsigned char x, unsigned char y) { return std::tolower(x) == std::tolower(y); });
}

// The registered functions for notifications, by handle, with their devices.
struct Notifications {
    static constexpr std::size_t kMost = 100'000;

    Mutex mutex;
    std::map<CUasyncCallbackHandle, CUdevice> registered GP_GUARDED_BY(mutex);
    std::uintptr_t next GP_GUARDED_BY(mutex) = 1;
};
Notifications& notifications() {
    static auto& instance = *new Notifications;
    return instance;
}

int attribute(const Device& device, CUdevice_attribute id) {
    int value = 0;
    device.attributes.get(id, &value);
    return value;
}

}  // namespace

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
    CUresult result = CUDA_SUCCESS;
    if (find(ordinal, result) != nullptr) {
        if (device == nullptr) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        *device = ordinal;
    }
    return result;
}

CUresult cuDeviceGetCount(int* count) {
    CUresult result = CUDA_SUCCESS;
    const DeviceSnapshot* devices = snapshot(result);
    return devices == nullptr ? result : store(count, static_cast<int>(devices->devices.size()));
}

CUresult cuDeviceGetName(char* name, int len, CUdevice dev) {
    CUresult result = CUDA_SUCCESS;
    const Device* device = find(dev, result);
    return device == nullptr ? result : store_text(device->name, name, len);
}

CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice dev) {
    CUresult result = CUDA_SUCCESS;
    const Device* device = find(dev, result);
    return device == nullptr ? result : store(uuid, device->uuid);
}

CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice dev) {
    CUresult result = CUDA_SUCCESS;
    const Device* device = find(dev, result);
    return device == nullptr ? result : store(uuid, device->uuid_v2);
}

CUresult cuDeviceTotalMem_v2(std::size_t* bytes, CUdevice dev) {
    CUresult result = CUDA_SUCCESS;
    const Device* device = find(dev, result);
    return device == nullptr ? result : store(bytes, device->total_bytes);
}

CUresult cuDeviceGetAttribute(int* pi, CUdevice_attribute attrib, CUdevice dev) {
    CUresult result = CUDA_SUCCESS;
    const Device* device = find(dev, result);
    if (device == nullptr) {
        return result;
    }
    if (pi == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    switch (static_cast<int>(attrib)) {
        // Features that cannot work with a remote GPU.
        // fails if the worker uses the address itself
        case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
        case CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS:
        case CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS:
        case CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES:
        case CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST:
        case CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES:
        case CU_DEVICE_ATTRIBUTE_HOST_MEMORY_POOLS_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_HOST_NUMA_MEMORY_POOLS_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_HOST_NUMA_MULTINODE_IPC_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_HOST_ALLOC_DMA_BUF_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED:
        case CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_ALGORITHM_MASK:
        case CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE:  // all sessions share it
        case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY: *pi = 0; return CUDA_SUCCESS;
        default: return device->attributes.get(attrib, pi);
    }
}

CUresult cuDeviceComputeCapability(int* major, int* minor, CUdevice dev) {
    CUresult result = CUDA_SUCCESS;
    if (const Device* device = find(dev, result)) {
        if (major == nullptr || minor == nullptr) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        *major = attribute(*device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
        *minor = attribute(*device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
    }
    return result;
}

CUresult cuDeviceGetByPCIBusId(CUdevice* dev, const char* pciBusId) {
    CUresult result = CUDA_SUCCESS;
    const DeviceSnapshot* devices = snapshot(result);
    if (devices == nullptr) {
        return result;
    }
    if (dev == nullptr || pciBusId == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (std::size_t i = 0; i < devices->devices.size(); ++i) {
        const std::string_view full = devices->devices[i].pci_bus_id;  // "0000:18:00.0"
        const std::string_view wanted = pciBusId;
        const auto without_domain = [](std::string_view id) {
            return std::count(id.begin(), id.end(), ':') == 2 ? id.substr(id.find(':') + 1) : id;
        };
        const auto without_function = [](std::string_view id) { return id.substr(0, id.find('.')); };
        if (same_bus_id(full, wanted) || same_bus_id(without_domain(full), wanted) ||
            same_bus_id(without_function(full), wanted) ||
            same_bus_id(without_function(without_domain(full)), wanted)) {
            *dev = static_cast<CUdevice>(i);
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuDeviceGetPCIBusId(char* pciBusId, int len, CUdevice dev) {
    CUresult result = CUDA_SUCCESS;
    const Device* device = find(dev, result);
    return device == nullptr ? result : store_text(device->pci_bus_id, pciBusId, len);
}

CUresult cuDeviceCanAccessPeer(int* canAccessPeer, CUdevice dev, CUdevice peerDev) {
    CUresult result = CUDA_SUCCESS;
    if (find(dev, result) == nullptr || find(peerDev, result) == nullptr) {
        return result;
    }
    return store(canAccessPeer, dev != peerDev && snapshot(result)->peer(dev, peerDev).can_access ? 1 : 0);
}

CUresult cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute attrib, CUdevice srcDevice, CUdevice dstDevice) {
    CUresult result = CUDA_SUCCESS;
    if (find(srcDevice, result) == nullptr || find(dstDevice, result) == nullptr) {
        return result;
    }
    if (value == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (srcDevice == dstDevice) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    return snapshot(result)->peer(srcDevice, dstDevice).attributes.get(attrib, value);
}

CUresult cuDeviceGetLuid(char* luid, unsigned* deviceNodeMask, CUdevice dev) {
    CUresult result = CUDA_SUCCESS;
    if (find(dev, result) == nullptr) {
        return result;
    }
    // As the driver on Linux: only Windows has these identifiers.
    return luid == nullptr || deviceNodeMask == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_SUPPORTED;
}

// A driver calls such a function when the process has taken more device memory than its budget. Here nothing has: the
// server refuses an allocation beyond the session's quota.
CUresult cuDeviceRegisterAsyncNotification(CUdevice device, CUasyncCallback callbackFunc, void*,
                                           CUasyncCallbackHandle* callback) {
    CUresult result = CUDA_SUCCESS;
    if (find(device, result) == nullptr) {
        return result;
    }
    if (callbackFunc == nullptr || callback == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    Notifications& all = notifications();
    const Lock lock(all.mutex);
    if (all.registered.size() >= Notifications::kMost) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    const auto handle = reinterpret_cast<CUasyncCallbackHandle>(all.next++);
    all.registered.emplace(handle, device);
    *callback = handle;
    return CUDA_SUCCESS;
}

CUresult cuDeviceUnregisterAsyncNotification(CUdevice device, CUasyncCallbackHandle callback) {
    CUresult result = CUDA_SUCCESS;
    if (find(device, result) == nullptr) {
        return result;
    }
    Notifications& all = notifications();
    const Lock lock(all.mutex);
    const auto found = all.registered.find(callback);
    if (found == all.registered.end() || found->second != device) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    all.registered.erase(found);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetProperties(CUdevprop* prop, CUdevice dev) {
    CUresult result = CUDA_SUCCESS;
    const Device* device = find(dev, result);
    if (device == nullptr) {
        return result;
    }
    if (prop == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const auto get = [&](CUdevice_attribute id) { return attribute(*device, id); };
    prop->maxThreadsPerBlock = get(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
    prop->maxThreadsDim[0] = get(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X);
    prop->maxThreadsDim[1] = get(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y);
    prop->maxThreadsDim[2] = get(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z);
    prop->maxGridSize[0] = get(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X);
    prop->maxGridSize[1] = get(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y);
    prop->maxGridSize[2] = get(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z);
    prop->sharedMemPerBlock = get(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK);
    prop->totalConstantMemory = get(CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY);
    prop->SIMDWidth = get(CU_DEVICE_ATTRIBUTE_WARP_SIZE);
    prop->memPitch = get(CU_DEVICE_ATTRIBUTE_MAX_PITCH);
    prop->regsPerBlock = get(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK);
    prop->clockRate = get(CU_DEVICE_ATTRIBUTE_CLOCK_RATE);
    prop->textureAlign = get(CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT);
    return CUDA_SUCCESS;
}

}  // namespace gpupool::client::entry
