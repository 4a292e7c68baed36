// Virtual memory management: reservations at chosen addresses, memory as file descriptors, mappings.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/mutex.h"
#include "common/round_up.h"
#include "server/softgpu/api/memory.h"
#include "server/softgpu/exec/address_space.h"

namespace gpupool::softgpu {
namespace {

constexpr std::uint64_t kGranularityBytes = std::uint64_t{2} << 20;
constexpr std::uint64_t kMaxReservedBytes = std::uint64_t{1} << 46;

// Physical memory is a memfd, so that it can be mapped anywhere and passed to another process.
struct Memory {
    int descriptor = -1;
    std::uint64_t size_bytes = 0;
    int device = 0;
    bool counted = false;
    CUmemAllocationProp properties{};
    int handles = 1;
    ~Memory() {
        if (descriptor >= 0) {
            close(descriptor);
        }
        if (counted) {
            state().devices[static_cast<std::size_t>(device)]->give(size_bytes);
        }
    }
};

struct Mapping {
    std::uint64_t size_bytes = 0;
    std::shared_ptr<Memory> memory;
    std::uint64_t readers = 0;  // bit per device
    std::uint64_t writers = 0;
    unsigned long long id = 0;
    bool accessible() const { return readers != 0; }
};

struct Vmm {
    Mutex mutex;
    std::map<std::uint64_t, std::uint64_t> reservations GP_GUARDED_BY(mutex);  // begin -> bytes
    std::map<std::uint64_t, Mapping> mappings GP_GUARDED_BY(mutex);            // by begin
    std::unordered_map<const void*, std::shared_ptr<Memory>> memories GP_GUARDED_BY(mutex);
};

Vmm& vmm() {
    static Vmm& instance = *new Vmm;
    return instance;
}

CUmemGenericAllocationHandle handle_of(const std::shared_ptr<Memory>& memory) {
    return reinterpret_cast<CUmemGenericAllocationHandle>(memory.get());
}

std::shared_ptr<Memory> find(CUmemGenericAllocationHandle handle) GP_REQUIRES(vmm().mutex) {
    const auto found = vmm().memories.find(reinterpret_cast<const void*>(handle));
    return found == vmm().memories.end() ? nullptr : found->second;
}

CUresult check_properties(const CUmemAllocationProp* properties) {
    SOFTGPU_NOT_NULL(properties);
    if (properties->type != CU_MEM_ALLOCATION_TYPE_PINNED) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
        const bool host = properties->location.type == CU_MEM_LOCATION_TYPE_HOST ||
                          properties->location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
        return host ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
    }
    if ((properties->requestedHandleTypes & (CU_MEM_HANDLE_TYPE_WIN32 | CU_MEM_HANDLE_TYPE_WIN32_KMT)) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if ((properties->requestedHandleTypes & CU_MEM_HANDLE_TYPE_FABRIC) != 0) {
        return CUDA_ERROR_NOT_PERMITTED;
    }
    Device* device;
    return find_device(properties->location.id, device);
}

bool inside_reservation(std::uint64_t begin, std::uint64_t size_bytes) GP_REQUIRES(vmm().mutex) {
    auto at = vmm().reservations.upper_bound(begin);
    if (at == vmm().reservations.begin()) {
        return false;
    }
    --at;
    return begin - at->first <= at->second && at->second - (begin - at->first) >= size_bytes;
}

bool overlaps_mapping(std::uint64_t begin, std::uint64_t size_bytes) GP_REQUIRES(vmm().mutex) {
    auto at = vmm().mappings.lower_bound(begin + size_bytes);
    if (at == vmm().mappings.begin()) {
        return false;
    }
    --at;
    return at->first + at->second.size_bytes > begin;
}

// Maps plain memory over the range. A kernel that still reads there must not crash the process; the address space
// already refuses new accesses.
void blank(std::uint64_t begin, std::uint64_t size_bytes) {
    mmap(reinterpret_cast<void*>(begin), size_bytes, PROT_READ | PROT_WRITE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

bool aligned(std::uint64_t value) {
    return value % kGranularityBytes == 0;
}

}  // namespace

std::pair<std::uint64_t, std::uint64_t> reservation_of(std::uint64_t address) {
    const Lock lock(vmm().mutex);
    const auto after = vmm().reservations.upper_bound(address);
    if (after == vmm().reservations.begin() || address - std::prev(after)->first >= std::prev(after)->second) {
        return {0, 0};
    }
    return {std::prev(after)->first, std::prev(after)->second};
}

}  // namespace gpupool::softgpu

using namespace gpupool::softgpu;

extern "C" {

CUresult CUDAAPI cuMemGetAllocationGranularity(size_t* bytes, const CUmemAllocationProp* properties,
                                               CUmemAllocationGranularity_flags) {
    SOFTGPU_READY();
    SOFTGPU_NOT_NULL(bytes);
    if (const CUresult error = check_properties(properties); error != CUDA_SUCCESS) {
        return error;
    }
    *bytes = kGranularityBytes;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemAddressReserve(CUdeviceptr* pointer, size_t size, size_t alignment, CUdeviceptr wanted,
                                     unsigned long long flags) {
    SOFTGPU_READY();
    if (pointer == nullptr || size == 0 || !aligned(size) || size > kMaxReservedBytes || flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if ((alignment & (alignment - 1)) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const std::size_t align = std::max<std::size_t>(alignment, kGranularityBytes);
    constexpr int kKind = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void* memory = MAP_FAILED;
    if (wanted != 0 && wanted % align == 0) {
        memory = mmap(reinterpret_cast<void*>(wanted), size, PROT_NONE, kKind | MAP_FIXED_NOREPLACE, -1, 0);
        // A Linux kernel without MAP_FIXED_NOREPLACE takes the address as a hint.
        if (memory != MAP_FAILED && memory != reinterpret_cast<void*>(wanted)) {
            munmap(memory, size), memory = MAP_FAILED;
        }
    }
    if (memory == MAP_FAILED) {
        void* wide = mmap(nullptr, size + align, PROT_NONE, kKind, -1, 0);
        if (wide == MAP_FAILED) {
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        const auto begin = reinterpret_cast<std::uint64_t>(wide);
        const std::uint64_t at = gpupool::round_up(begin, align);
        if (at > begin) {
            munmap(wide, at - begin);
        }
        if (begin + align > at) {
            munmap(reinterpret_cast<void*>(at + size), begin + align - at);
        }
        memory = reinterpret_cast<void*>(at);
    }
    const Lock lock(vmm().mutex);
    vmm().reservations[reinterpret_cast<std::uint64_t>(memory)] = size;
    *pointer = reinterpret_cast<CUdeviceptr>(memory);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemAddressFree(CUdeviceptr pointer, size_t size) {
    SOFTGPU_READY();
    const Lock lock(vmm().mutex);
    const auto found = vmm().reservations.find(pointer);
    if (found == vmm().reservations.end() || found->second != size || overlaps_mapping(pointer, size)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    munmap(reinterpret_cast<void*>(pointer), size);
    vmm().reservations.erase(found);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemCreate(CUmemGenericAllocationHandle* handle, size_t size, const CUmemAllocationProp* properties,
                             unsigned long long flags) {
    SOFTGPU_READY();
    if (handle == nullptr || size == 0 || !aligned(size) || flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (const CUresult error = check_properties(properties); error != CUDA_SUCCESS) {
        return error;
    }
    Device* device;
    if (const CUresult error = find_device(properties->location.id, device); error != CUDA_SUCCESS) {
        return error;
    }
    if (!device->take(size)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    auto memory = std::make_shared<Memory>();
    memory->counted = true;
    memory->device = device->ordinal;
    memory->size_bytes = size;
    memory->properties = *properties;
    memory->descriptor = memfd_create("gpupool-softgpu", MFD_CLOEXEC);
    if (memory->descriptor < 0 || ftruncate(memory->descriptor, static_cast<off_t>(size)) != 0) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    const Lock lock(vmm().mutex);
    vmm().memories[memory.get()] = memory;
    *handle = handle_of(memory);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemRelease(CUmemGenericAllocationHandle handle) {
    SOFTGPU_READY();
    const Lock lock(vmm().mutex);
    const auto memory = find(handle);
    if (memory == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    // Mappings keep the memory until they are unmapped.
    if (--memory->handles == 0) {
        vmm().memories.erase(memory.get());
    }
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemMap(CUdeviceptr pointer, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                          unsigned long long flags) {
    SOFTGPU_READY();
    const Lock lock(vmm().mutex);
    const auto memory = find(handle);
    if (memory == nullptr || size == 0 || !aligned(pointer) || !aligned(size) || flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (offset != 0 || memory->size_bytes < size) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!inside_reservation(pointer, size) || overlaps_mapping(pointer, size)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    void* mapped = mmap(reinterpret_cast<void*>(pointer), size, PROT_NONE, MAP_SHARED | MAP_FIXED, memory->descriptor,
                        static_cast<off_t>(offset));
    if (mapped == MAP_FAILED) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    vmm().mappings[pointer] = {size, memory};
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemSetAccess(CUdeviceptr pointer, size_t size, const CUmemAccessDesc* access, size_t count) {
    SOFTGPU_READY();
    if (size == 0 || access == nullptr || count == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const Lock lock(vmm().mutex);
    // The range must consist of whole mappings without gaps.
    std::uint64_t covered = pointer;
    for (auto at = vmm().mappings.find(pointer);
         at != vmm().mappings.end() && at->first == covered && covered < pointer + size; ++at) {
        covered += at->second.size_bytes;
    }
    if (covered != pointer + size) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    std::uint64_t asked = 0, readers = 0, writers = 0;
    for (std::size_t i = 0; i < count; ++i) {
        if (access[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
            return CUDA_ERROR_NOT_SUPPORTED;
        }
        Device* device;
        if (const CUresult error = find_device(access[i].location.id, device); error != CUDA_SUCCESS) {
            return error;
        }
        const std::uint64_t bit = std::uint64_t{1} << device->ordinal;
        asked |= bit;
        readers = access[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE ? readers | bit : readers & ~bit;
        writers = access[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ? writers | bit : writers & ~bit;
    }
    for (auto at = vmm().mappings.find(pointer); at != vmm().mappings.end() && at->first < pointer + size; ++at) {
        Mapping& mapping = at->second;
        const bool before = mapping.accessible();
        mapping.readers = (mapping.readers & ~asked) | readers;
        mapping.writers = (mapping.writers & ~asked) | writers;
        // The host's page protection only says whether any device may access the range. A copy by the host may write
        // where kernels may only read.
        if (before != mapping.accessible() && mprotect(reinterpret_cast<void*>(at->first), mapping.size_bytes,
                                                       before ? PROT_NONE : PROT_READ | PROT_WRITE) != 0) {
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        if (mapping.accessible()) {
            if (mapping.id == 0) {
                mapping.id = state().next_id.fetch_add(1);
            }
            state().allocations.add({at->first, mapping.size_bytes, MemoryKind::mapped, nullptr, mapping.memory->device,
                                     0, mapping.id, 0, nullptr, nullptr, mapping.readers, mapping.writers});
        } else if (before) {
            Allocation removed;
            state().allocations.remove(at->first, removed);
        }
    }
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location, CUdeviceptr pointer) {
    SOFTGPU_READY();
    if (flags == nullptr || location == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (location->type != CU_MEM_LOCATION_TYPE_DEVICE) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    Device* device;
    if (const CUresult error = find_device(location->id, device); error != CUDA_SUCCESS) {
        return error;
    }
    const Lock lock(vmm().mutex);
    auto at = vmm().mappings.upper_bound(pointer);
    if (at == vmm().mappings.begin() || pointer - std::prev(at)->first >= std::prev(at)->second.size_bytes) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const Mapping& mapping = std::prev(at)->second;
    const std::uint64_t bit = std::uint64_t{1} << device->ordinal;
    *flags = (mapping.writers & bit) != 0   ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
             : (mapping.readers & bit) != 0 ? CU_MEM_ACCESS_FLAGS_PROT_READ
                                            : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemUnmap(CUdeviceptr pointer, size_t size) {
    SOFTGPU_READY();
    const Lock lock(vmm().mutex);
    std::uint64_t covered = pointer;
    const auto first = vmm().mappings.find(pointer);
    auto last = first;
    for (; last != vmm().mappings.end() && last->first == covered && covered < pointer + size; ++last) {
        covered += last->second.size_bytes;
    }
    if (size == 0 || covered != pointer + size) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (auto at = first; at != last; ++at) {
        Allocation removed;
        if (at->second.accessible()) {
            state().allocations.remove(at->first, removed);
        }
        blank(at->first, at->second.size_bytes);
    }
    vmm().mappings.erase(first, last);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) {
    SOFTGPU_READY();
    SOFTGPU_NOT_NULL(handle);
    const Lock lock(vmm().mutex);
    const auto pointer = reinterpret_cast<std::uint64_t>(address);
    auto at = vmm().mappings.upper_bound(pointer);
    if (at == vmm().mappings.begin() || pointer - std::prev(at)->first >= std::prev(at)->second.size_bytes) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const auto& memory = std::prev(at)->second.memory;
    memory->handles = vmm().memories.emplace(memory.get(), memory).second ? 1 : memory->handles + 1;
    *handle = handle_of(memory);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* properties,
                                                        CUmemGenericAllocationHandle handle) {
    SOFTGPU_READY();
    const Lock lock(vmm().mutex);
    const auto memory = find(handle);
    if (properties == nullptr || memory == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *properties = memory->properties;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemExportToShareableHandle(void* result, CUmemGenericAllocationHandle handle,
                                              CUmemAllocationHandleType type, unsigned long long flags) {
    SOFTGPU_READY();
    const Lock lock(vmm().mutex);
    const auto memory = find(handle);
    if (result == nullptr || memory == nullptr || flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || (memory->properties.requestedHandleTypes & type) == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const int copy = fcntl(memory->descriptor, F_DUPFD_CLOEXEC, 0);
    if (copy < 0) {
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    *static_cast<int*>(result) = copy;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* descriptor,
                                                CUmemAllocationHandleType type) {
    SOFTGPU_READY();
    if (handle == nullptr || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const int given = static_cast<int>(reinterpret_cast<std::intptr_t>(descriptor));
    struct stat status {};
    if (fstat(given, &status) != 0 || status.st_size <= 0 || !aligned(static_cast<std::uint64_t>(status.st_size))) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    auto memory = std::make_shared<Memory>();
    memory->descriptor = fcntl(given, F_DUPFD_CLOEXEC, 0);
    if (memory->descriptor < 0) {
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    memory->size_bytes = static_cast<std::uint64_t>(status.st_size);
    memory->properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    memory->properties.requestedHandleTypes = type;
    memory->properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    const Lock lock(vmm().mutex);
    vmm().memories[memory.get()] = memory;
    *handle = handle_of(memory);
    return CUDA_SUCCESS;
}

}  // extern "C"
