// Device memory, reservations, pinned host memory, and queries of addresses.

#include "client/calls/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <vector>

#include "client/calls/handlers.h"
#include "client/core/dispatch/remote.h"
#include "common/round_up.h"

namespace gpupool::client::entry {
namespace {

DeviceHeap& heap_of(Session& s, CUdevice device) {
    return *s.heaps[static_cast<std::size_t>(device)];
}

CUresult allocate(CUdeviceptr* dptr, std::size_t bytes) {
    ContextState* context = nullptr;
    CUresult result = usable_context(context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (dptr == nullptr || bytes == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    Session& s = this_session();
    std::uint64_t address = 0;
    result = allocate_with_reclaim(context->device, context,
                                   [&] { return heap_of(s, context->device).allocate(bytes, address); });
    if (result == CUDA_SUCCESS) {
        s.memory.add({address, bytes, MemoryKind::device, context->device, &context->owner()});
        *dptr = address;
    }
    return result;
}

std::uint64_t page_bytes() {
    static const auto bytes = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
    return bytes;
}

std::uint64_t whole_pages(std::uint64_t bytes) {
    return round_up(bytes, page_bytes());
}

// A hint where to put pinned memory. Under ThreadSanitizer the worker's own memory cannot lie far from the client's
// addresses (server/worker/session/main.cpp), so pinned memory goes to a range that neither uses.
void* pinned_place([[maybe_unused]] std::uint64_t bytes) {
#if defined(__SANITIZE_THREAD__)
    static std::atomic<std::uint64_t> next{0x7fb000000000};
    return reinterpret_cast<void*>(next.fetch_add(bytes, std::memory_order_relaxed));
#else
    return nullptr;
#endif
}

CUresult allocate_host(void** pp, std::size_t bytes, unsigned flags) {
    constexpr unsigned kKnown = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
    ContextState* context = nullptr;
    CUresult result = usable_context(context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (pp == nullptr || (flags & ~kKnown) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (bytes == 0) {
        *pp = nullptr;
        return CUDA_SUCCESS;
    }
    Session& s = this_session();
    const std::uint64_t pages = whole_pages(bytes);
    void* place = allocate_shared(s, context->owner().handle, pages, pinned_place(pages));
    const bool shared = place != nullptr;
    if (!shared) {
        place = mmap(pinned_place(pages), pages, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (place == MAP_FAILED) {
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        end_registered(s, reinterpret_cast<std::uint64_t>(place), bytes);
    }
    const auto address = reinterpret_cast<std::uint64_t>(place);
    MemoryRange range{address, bytes, MemoryKind::pinned, context->device, &context->owner(), flags};
    range.gpu_has = shared;
    s.memory.add(range);
    *pp = place;
    return CUDA_SUCCESS;
}

bool is_mapped(std::uint64_t address, std::uint64_t bytes) {
    const std::uint64_t first = address / page_bytes() * page_bytes();
    if (bytes > ~std::uint64_t{0} - address - page_bytes()) {
        return false;
    }
    constexpr std::uint64_t kAtOnce = 64u << 20;
    std::vector<unsigned char> pages(kAtOnce / page_bytes());
    for (std::uint64_t at = first; at < address + bytes; at += kAtOnce) {
        const std::uint64_t part = std::min(kAtOnce, whole_pages(address + bytes - at));
        if (mincore(reinterpret_cast<void*>(at), part, pages.data()) != 0) {
            return false;
        }
    }
    return true;
}

CUresult register_host(void* p, std::size_t bytes, unsigned flags) {
    constexpr unsigned kKnown = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP |
                                CU_MEMHOSTREGISTER_IOMEMORY | CU_MEMHOSTREGISTER_READ_ONLY;
    ContextState* context = nullptr;
    CUresult result = usable_context(context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (p == nullptr || bytes == 0 || (flags & ~kKnown) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if ((flags & CU_MEMHOSTREGISTER_IOMEMORY) != 0) {
        return CUDA_ERROR_NOT_SUPPORTED;  // memory of another device of this machine
    }
    Session& s = this_session();
    const auto address = reinterpret_cast<std::uint64_t>(p);
    if (!is_mapped(address, bytes)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (const auto known = s.memory.find_within(address, bytes)) {
        return known->kind == MemoryKind::registered ? CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED
                                                     : CUDA_ERROR_INVALID_VALUE;
    }
    s.memory.add({address, bytes, MemoryKind::registered, context->device, &context->owner(), flags});
    return CUDA_SUCCESS;
}

// Before memory is freed or unregistered, waits for work that may use it, as the driver does, and for transfers.
CUresult wait_for_host_memory(Session& s, const MemoryRange& range) {
    const CUresult result = wait_for_users(s, range.device, range.context);
    s.transfers.wait_untouched(reinterpret_cast<const void*>(range.base), range.bytes);
    return result;
}

}  // namespace

void wait_without_errors(Session& s, ContextState& context) {
    if (context.live && !s.all_complete(context) && remote<calls::gpContextWait>(context.handle) == CUDA_SUCCESS) {
        s.note_complete(context);
    }
}

CUresult wait_for_users(Session& s, CUdevice device, ContextState* own) {
    const bool is_busy = own != nullptr && own->live && !s.all_complete(*own);
    const CUresult result = is_busy ? wait_for_context(*own) : CUDA_SUCCESS;
    if (own == nullptr || s.contexts.several()) {
        s.contexts.each_live([&](ContextState& context) {
            if (&context != own && context.device == device) {
                wait_without_errors(s, context);
            }
        });
    }
    return result;
}

CUresult reclaim_and_allocate(CUdevice device, ContextState* context, const std::function<CUresult()>& allocate) {
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    Session& s = this_session();
    if (device < 0 || static_cast<std::size_t>(device) >= s.heaps.size()) {
        return result;
    }
    if (heap_of(s, device).trim()) {
        result = allocate();
    }
    StreamPool& pool = *s.pools[static_cast<std::size_t>(device)];
    if (result != CUDA_ERROR_OUT_OF_MEMORY || s.captures.any() || !(pool.any_freed() || pool.kept_bytes() != 0)) {
        return result;
    }
    if (context != nullptr) {
        if (const CUresult waited = wait_for_context(*context); waited != CUDA_SUCCESS) {
            return waited;
        }
    }
    pool.release(0);
    (void)heap_of(s, device).trim();
    return allocate();
}

CUresult cuMemAlloc_v2(CUdeviceptr* dptr, std::size_t bytesize) {
    return allocate(dptr, bytesize);
}

CUresult cuMemAllocPitch_v2(CUdeviceptr* dptr, std::size_t* pPitch, std::size_t WidthInBytes, std::size_t Height,
                            unsigned ElementSizeBytes) {
    constexpr std::size_t kPitch = 512;
    if (pPitch == nullptr || WidthInBytes == 0 || Height == 0 ||
        (ElementSizeBytes != 4 && ElementSizeBytes != 8 && ElementSizeBytes != 16)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const std::size_t pitch = round_up(WidthInBytes, kPitch);
    if (pitch < WidthInBytes || Height > SIZE_MAX / pitch) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    const CUresult result = allocate(dptr, pitch * Height);
    if (result == CUDA_SUCCESS) {
        *pPitch = pitch;
    }
    return result;
}

CUresult cuMemFree_v2(CUdeviceptr dptr) {
    CUresult result = CUDA_SUCCESS;
    Session* const here = session(result);
    if (here == nullptr || dptr == 0) {
        return result;
    }
    if (ContextState* const context = this_thread().current(); context != nullptr && context->lost != CUDA_SUCCESS) {
        return context->lost;
    }
    Session& s = *here;
    const auto range = s.memory.find(dptr);  // any context, or none, may be current
    if (!range || range->base != dptr || range->idle ||
        (range->kind != MemoryKind::device && range->kind != MemoryKind::pool)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    // As the driver does: no work that was sent may still use the memory.
    result = wait_for_users(s, range->device, range->context);
    const auto free_by_driver = [&] {
        const CurrentContext current(range->context);
        return remote<calls::cuMemFree_v2>(dptr);
    };
    CUresult freed = CUDA_SUCCESS;
    if (range->of_graph) {
        freed = free_of_graph(s, *range, free_by_driver);
    } else if (!s.memory.remove(dptr)) {
        freed = CUDA_ERROR_INVALID_VALUE;  // another thread was faster
    } else if (range->kind == MemoryKind::device) {
        heap_of(s, range->device).free(dptr);
    } else if (!s.pools[static_cast<std::size_t>(range->device)]->free_complete(dptr)) {
        freed = free_by_driver();  // of another pool
    }
    return result != CUDA_SUCCESS ? result : freed;
}

CUresult cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
    ContextState* context = nullptr;
    CUresult result = usable_context(context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    std::size_t free_bytes = 0, total_bytes = 0;
    result = remote<calls::cuMemGetInfo_v2>(&free_bytes, &total_bytes);
    if (result == CUDA_SUCCESS) {
        // Memory that is committed but unused is available to this program.
        Session& s = this_session();
        free_bytes +=
            heap_of(s, context->device).free_bytes() + s.pools[static_cast<std::size_t>(context->device)]->kept_bytes();
        if (free != nullptr) {
            *free = std::min(free_bytes, total_bytes);
        }
        if (total != nullptr) {
            *total = total_bytes;
        }
    }
    return result;
}

CUresult cuMemAddressReserve(CUdeviceptr* ptr, std::size_t size, std::size_t alignment, CUdeviceptr addr,
                             unsigned long long flags) {
    CUresult result = CUDA_SUCCESS;
    Session* s = session(result);
    if (s == nullptr) {
        return result;
    }
    if (ptr == nullptr || size == 0 || size % AddressWindow::kGranularity != 0 || flags != 0 ||
        (alignment & (alignment - 1)) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    // The server has reserved the whole window, so a reservation within it needs no call.
    const std::uint64_t address =
        s->window.reserve(size, std::max<std::uint64_t>(alignment, AddressWindow::kGranularity), addr);
    if (address == 0) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *ptr = address;
    return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr ptr, std::size_t size) {
    CUresult result = CUDA_SUCCESS;
    Session* s = session(result);
    if (s == nullptr) {
        return result;
    }
    const bool mapped = s->memory.find_within(ptr, size).has_value();
    return !mapped && s->window.unreserve(ptr, size) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, std::size_t size, const CUmemAllocationProp* prop,
                     unsigned long long flags) {
    const CUdevice device =
        prop != nullptr && prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE ? prop->location.id : -1;
    return allocate_with_reclaim(device, this_thread().current(),
                                 [&] { return remote<calls::cuMemCreate>(handle, size, prop, flags); });
}

CUresult cuMemMap(CUdeviceptr ptr, std::size_t size, std::size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
    CUresult result = CUDA_SUCCESS;
    Session* s = session(result);
    if (s == nullptr) {
        return result;
    }
    // The driver cannot check this: the server has reserved the whole window.
    if (!s->window.is_reserved(ptr, size)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    result = remote<calls::cuMemMap>(ptr, size, offset, handle, flags);
    if (result == CUDA_SUCCESS) {
        ContextState* context = this_thread().current();
        s->memory.add({ptr, size, MemoryKind::mapped, context == nullptr ? 0 : context->device, nullptr});
    }
    return result;
}

CUresult cuMemUnmap(CUdeviceptr ptr, std::size_t size) {
    CUresult result = remote<calls::cuMemUnmap>(ptr, size);
    if (result == CUDA_SUCCESS) {
        Session& s = this_session();
        for (CUdeviceptr at = ptr; at < ptr + size;) {
            const auto range = s.memory.remove(at);
            at += range ? range->bytes : AddressWindow::kGranularity;
        }
    }
    return result;
}

namespace {

// cuMemGetAddressRange finds memory of cuMemMap only after cuMemSetAccess.
bool has_access(const MemoryRange& range) {
    const CUmemLocation location{CU_MEM_LOCATION_TYPE_DEVICE, range.device};
    unsigned long long flags = 0;
    return remote<calls::cuMemGetAccess>(&flags, &location, range.base) != CUDA_SUCCESS || flags != 0;
}

}  // namespace

CUresult cuMemGetAddressRange_v2(CUdeviceptr* pbase, std::size_t* psize, CUdeviceptr dptr) {
    ContextState* context = nullptr;
    CUresult result = usable_context(context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    const auto range = this_session().memory.find(dptr);
    if (!range || range->idle || (range->kind == MemoryKind::mapped && !has_access(*range))) {
        return CUDA_ERROR_NOT_FOUND;
    }
    if (pbase != nullptr) {
        *pbase = range->base;
    }
    if (psize != nullptr) {
        *psize = range->bytes;
    }
    return CUDA_SUCCESS;
}

// ---- host memory

CUresult cuMemAllocHost_v2(void** pp, std::size_t bytesize) {
    return allocate_host(pp, bytesize, 0);
}

CUresult cuMemHostAlloc(void** pp, std::size_t bytesize, unsigned Flags) {
    return allocate_host(pp, bytesize, Flags);
}

CUresult cuMemFreeHost(void* p) {
    CUresult result = CUDA_SUCCESS;
    Session* s = session(result);
    if (s == nullptr || p == nullptr) {
        return result;
    }
    const auto range = s->memory.find(reinterpret_cast<std::uint64_t>(p));
    if (!range || range->kind != MemoryKind::pinned || range->base != reinterpret_cast<std::uint64_t>(p)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    result = wait_for_host_memory(*s, *range);
    if (forget_host_memory(*s, range->base)) {
        munmap(p, whole_pages(range->bytes));
    }
    return result;
}

CUresult cuMemHostRegister(void* p, std::size_t bytesize, unsigned Flags) {
    return register_host(p, bytesize, Flags);
}
CUresult cuMemHostRegister_v2(void* p, std::size_t bytesize, unsigned Flags) {
    return register_host(p, bytesize, Flags);
}

CUresult cuMemHostUnregister(void* p) {
    CUresult result = CUDA_SUCCESS;
    Session* s = session(result);
    if (s == nullptr) {
        return result;
    }
    if (p == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const auto range = s->memory.find(reinterpret_cast<std::uint64_t>(p));
    if (!range) {
        return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    }
    if (range->kind != MemoryKind::registered || range->base != reinterpret_cast<std::uint64_t>(p)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    result = wait_for_host_memory(*s, *range);
    forget_host_memory(*s, range->base);
    return result;
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* pdptr, void* p, unsigned Flags) {
    ContextState* context = nullptr;
    CUresult result = usable_context(context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (pdptr == nullptr || Flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const auto range = this_session().memory.find(reinterpret_cast<std::uint64_t>(p));
    if (!range || range->on_device()) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    result = mirror_host_memory(this_session(), range->base, true);
    if (result == CUDA_SUCCESS) {
        // Usually the same address, as with unified addressing.
        *pdptr = this_session().host_mirrors.device_address(reinterpret_cast<std::uint64_t>(p));
    }
    return result;
}

CUresult cuMemHostGetFlags(unsigned* pFlags, void* p) {
    CUresult result = CUDA_SUCCESS;
    Session* s = session(result);
    if (s == nullptr) {
        return result;
    }
    const auto range = s->memory.find(reinterpret_cast<std::uint64_t>(p));
    if (pFlags == nullptr || !range || range->on_device()) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    // All host memory is mapped. The flags of both calls have the same bits; of registered memory the driver returns
    // only one.
    const unsigned returned =
        range->kind == MemoryKind::pinned ? range->flags : range->flags & CU_MEMHOSTREGISTER_PORTABLE;
    *pFlags = returned | CU_MEMHOSTALLOC_DEVICEMAP;
    return CUDA_SUCCESS;
}

// ---- pointer attributes

namespace {

template <class T>
void store(void* data, T value) {
    *static_cast<T*>(data) = value;
}

CUresult pool_of(const std::optional<MemoryRange>& range, CUmemoryPool* pool) {
    *pool = range && !range->of_graph ? range->pool : nullptr;
    if (range && range->kind == MemoryKind::pool && range->pool == nullptr && !range->of_graph) {
        return remote<calls::cuDeviceGetMemPool>(pool, range->device);
    }
    return CUDA_SUCCESS;
}

// What the driver calls the range of an address: its allocation, or the reservation that the memory is mapped in.
std::pair<std::uint64_t, std::uint64_t> range_of(const std::optional<MemoryRange>& range) {
    if (!range) {
        return {};
    }
    return range->kind == MemoryKind::mapped ? this_session().window.reservation_of(range->base)
                                             : std::pair(range->base, range->bytes);
}

// `range` is empty only for cuPointerGetAttributes, which returns null values instead of an error.
CUresult attribute_of(const std::optional<MemoryRange>& range, CUdeviceptr ptr, CUpointer_attribute attribute,
                      void* data) {
    const bool there = range.has_value();
    const bool device = there && range->on_device();
    switch (attribute) {
        case CU_POINTER_ATTRIBUTE_CONTEXT:
            store<CUcontext>(data, there && range->context != nullptr && range->kind != MemoryKind::pool
                                       ? range->context->handle
                                       : nullptr);  // a pool belongs to a device
            return CUDA_SUCCESS;
        case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
            store<unsigned>(data,
                            !there ? 0u : static_cast<unsigned>(device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST));
            return CUDA_SUCCESS;
        case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: store<CUdeviceptr>(data, there ? ptr : 0); return CUDA_SUCCESS;
        case CU_POINTER_ATTRIBUTE_HOST_POINTER:
            store<void*>(data, there && !device ? reinterpret_cast<void*>(ptr) : nullptr);
            return there && device ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
        case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
            store<int>(data, there && range->sync_memops ? 1 : 0);
            return CUDA_SUCCESS;
        case CU_POINTER_ATTRIBUTE_BUFFER_ID:
            store<unsigned long long>(data, there ? range->id : 0);
            return CUDA_SUCCESS;
        case CU_POINTER_ATTRIBUTE_IS_MANAGED: store<int>(data, 0); return CUDA_SUCCESS;
        case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: store<int>(data, there ? range->device : -2); return CUDA_SUCCESS;
        case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: store<int>(data, 0); return CUDA_SUCCESS;
        case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
            store<CUdeviceptr>(data, range_of(range).first);
            return CUDA_SUCCESS;
        case CU_POINTER_ATTRIBUTE_RANGE_SIZE: store<std::size_t>(data, range_of(range).second); return CUDA_SUCCESS;
        case CU_POINTER_ATTRIBUTE_MAPPED: store<int>(data, there ? 1 : 0); return CUDA_SUCCESS;
        case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES: store<unsigned long long>(data, 0); return CUDA_SUCCESS;
        case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE: store<int>(data, 0); return CUDA_SUCCESS;
        case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
            store<int>(data,
                       there ? CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE : CU_POINTER_ATTRIBUTE_ACCESS_FLAG_NONE);
            return CUDA_SUCCESS;
        case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: return pool_of(range, static_cast<CUmemoryPool*>(data));
        case CU_POINTER_ATTRIBUTE_MAPPING_SIZE: store<std::size_t>(data, there ? range->bytes : 0); return CUDA_SUCCESS;
        case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
            store<CUdeviceptr>(data, there ? range->base : 0);
            return CUDA_SUCCESS;
        case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
            store<unsigned long long>(data, there ? range->id : 0);
            return CUDA_SUCCESS;
        default: return CUDA_ERROR_NOT_SUPPORTED;
    }
}

}  // namespace

CUresult cuPointerSetAttribute(const void* value, CUpointer_attribute attribute, CUdeviceptr ptr) {
    if (value == nullptr || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return this_session().memory.set_sync_memops(ptr, *static_cast<const int*>(value) != 0) ? CUDA_SUCCESS
                                                                                            : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr ptr) {
    CUresult result = CUDA_SUCCESS;
    Session* s = session(result);
    if (s == nullptr) {
        return result;
    }
    const auto range = s->memory.find(ptr);
    if (data == nullptr || !range || range->idle) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return attribute_of(range, ptr, attribute, data);
}

CUresult cuPointerGetAttributes(unsigned numAttributes, CUpointer_attribute* attributes, void** data, CUdeviceptr ptr) {
    CUresult result = CUDA_SUCCESS;
    Session* s = session(result);
    if (s == nullptr) {
        return result;
    }
    if (attributes == nullptr || data == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    auto range = s->memory.find(ptr);
    if (range && range->idle) {
        range.reset();
    }
    for (unsigned i = 0; i < numAttributes; ++i) {
        result = attribute_of(range, ptr, attributes[i], data[i]);
        if (result == CUDA_ERROR_NOT_SUPPORTED) {
            return result;
        }
    }
    return CUDA_SUCCESS;
}

}  // namespace gpupool::client::entry
