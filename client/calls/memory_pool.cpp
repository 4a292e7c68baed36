// Stream-ordered memory and memory pools.
//
// The client itself implements the devices' default pools (client/core/memory/stream_pool.h), so that a stream-ordered
// allocation needs no round trip. The driver implements pools that the program creates, and allocations in captures,
// which the graph repeats at every launch.

#include <algorithm>
#include <array>

#include "client/calls/handlers.h"
#include "client/calls/memory.h"
#include "client/calls/streams.h"
#include "client/core/dispatch/remote.h"
#include "common/mutex.h"

namespace gpupool::client::entry {
namespace {

// The pools of a device, once they were needed.
struct DevicePools {
    Mutex mutex;
    CUmemoryPool standard GP_GUARDED_BY(mutex) = nullptr;  // the default pool; null: not queried yet
    CUmemoryPool current GP_GUARDED_BY(mutex) = nullptr;
};
constexpr std::size_t kMaxDevices = 64;

DevicePools& pools_of(CUdevice device) {
    static auto& all = *new std::array<DevicePools, kMaxDevices>;
    return all[static_cast<std::size_t>(device)];
}

bool is_device(const Session& s, CUdevice device) {
    return device >= 0 && static_cast<std::size_t>(device) < std::min(s.pools.size(), kMaxDevices);
}

// Gets the handles of the default and the current pool. Asks the server the first time only.
CUresult learn_pools(CUdevice device, CUmemoryPool& standard, CUmemoryPool& current) {
    DevicePools& pools = pools_of(device);
    UniqueLock lock(pools.mutex);
    if (pools.standard == nullptr) {
        lock.unlock();
        CUresult result = remote<calls::cuDeviceGetDefaultMemPool>(&standard, device);
        result = result != CUDA_SUCCESS ? result : remote<calls::cuDeviceGetMemPool>(&current, device);
        if (result != CUDA_SUCCESS) {
            return result;
        }
        lock.lock();
        if (pools.standard == nullptr) {  // otherwise another thread has stored it, and may have set another pool since
            pools.standard = standard;
            pools.current = current;
        }
    }
    standard = pools.standard;
    current = pools.current;
    return CUDA_SUCCESS;
}

// The client's own pool, if `pool` (null: the device's current one) is the default pool of that device; else null.
StreamPool* own_pool(Session& s, CUdevice device, CUmemoryPool pool) {
    CUmemoryPool standard = nullptr, current = nullptr;
    if (!is_device(s, device) || learn_pools(device, standard, current) != CUDA_SUCCESS) {
        return nullptr;
    }
    return (pool == nullptr ? current : pool) == standard ? s.pools[static_cast<std::size_t>(device)].get() : nullptr;
}

// The same for the default pool of any device.
StreamPool* own_pool(Session& s, CUmemoryPool pool) {
    for (CUdevice device = 0; pool != nullptr && is_device(s, device); ++device) {
        if (StreamPool* const found = own_pool(s, device, pool)) {
            return found;
        }
    }
    return nullptr;
}

// The pool that an allocation is made from. `pool`: null for the device's current one.
CUmemoryPool pool_meant(Session& s, CUdevice device, CUmemoryPool pool) {
    CUmemoryPool standard = nullptr, current = nullptr;
    if (pool == nullptr && is_device(s, device)) {
        (void)learn_pools(device, standard, current);
    }
    return pool == nullptr ? current : pool;
}

// An allocation or a free in a capturing stream is part of the capture. In another stream, while one captures, it is a
// call like others.
CUresult may_use_memory_in(CUstream stream) {
    Captures& captures = this_session().captures;
    return !captures.any() || captures.find(stream_key(stream)) ? CUDA_SUCCESS : captures.before_unsafe_call();
}

// Sets a fence: records an event of gpupool's own behind the work sent to the stream. The worker reports its
// completion.
StreamPool::Passed set_fence(Session& s, CUstream stream) {
    CUevent handle = nullptr;
    constexpr unsigned kFlags = CU_EVENT_DISABLE_TIMING;
    if (remote<calls::cuEventCreate>(&handle, kFlags) != CUDA_SUCCESS) {
        return {};
    }
    s.events.add(handle, kFlags);
    // The event stays known as long as the fence exists.
    const std::shared_ptr<void> known(nullptr, [&s, handle](void*) { s.events.remove(handle); });
    const std::shared_ptr<Event> event = s.events.find(handle);
    event->record = 1;
    event->watched = 1;
    CUresult result = remote<calls::cuEventRecord>(handle, stream);
    result = result != CUDA_SUCCESS ? result : remote<calls::gpEventWatch>(handle, std::uint64_t{1});
    remote<calls::cuEventDestroy_v2>(handle);  // the worker goes on watching it
    if (result != CUDA_SUCCESS) {
        return {};
    }
    return [event, known] { return event->known() == Event::Known::complete; };
}

// Gives the program memory of the client's pool.
void give(CUdeviceptr* dptr, CUdeviceptr address, std::size_t bytes, CUmemoryPool pool, ContextState& context) {
    MemoryRange range{address, bytes, MemoryKind::pool, context.device, &context.owner()};
    range.pool = pool_meant(this_session(), context.device, pool);
    this_session().memory.add(range);
    *dptr = address;
}

// Gives it memory that the driver has allocated. In a capture that belongs to the graph, and is idle until a launch.
void give_from_driver(CUdeviceptr* dptr, CUdeviceptr address, std::size_t bytes, CUmemoryPool pool,
                      ContextState& context, CUstream stream) {
    Session& s = this_session();
    const auto capture = s.captures.find(stream_key(stream));
    MemoryRange range{address, bytes, MemoryKind::pool, context.device, &context.owner()};
    range.pool = pool_meant(s, context.device, pool);
    range.of_graph = range.idle = capture.has_value();
    s.memory.add(range);
    if (capture) {
        s.graph_memories.add_captured(capture->id, address, GraphMemories::Does::allocates);
    }
    *dptr = address;
}

// The checks that both calls begin with.
CUresult begin_allocation(const CUdeviceptr* dptr, CUstream stream, ContextState*& context) {
    CUresult result = usable_context(context);
    result = result != CUDA_SUCCESS ? result : may_use_memory_in(stream);
    return result == CUDA_SUCCESS && dptr == nullptr ? CUDA_ERROR_INVALID_VALUE : result;
}

// An allocation of no bytes succeeds, with the null address.
bool allocate_nothing(CUdeviceptr* dptr, std::size_t bytes) {
    if (bytes == 0) {
        *dptr = 0;
    }
    return bytes == 0;
}

// Allocates from the client's pool. False, for the driver to do it, if another pool is meant, the stream captures, or
// an argument is invalid.
bool allocate_here(CUdeviceptr* dptr, std::size_t bytes, CUmemoryPool pool, CUstream stream, CUresult& result) {
    Session& s = this_session();
    StreamInfo info;
    if (bytes == 0 || find_stream(stream, info) != CUDA_SUCCESS || info.context == nullptr) {
        return false;
    }
    const StreamKey key = stream_key(stream);
    StreamPool* const own =
        s.captures.any() && s.captures.find(key) ? nullptr : own_pool(s, info.context->device, pool);
    if (own == nullptr) {
        return false;
    }
    std::uint64_t address = 0;
    result =
        allocate_with_reclaim(info.context->device, info.context, [&] { return own->allocate(bytes, key, address); });
    if (result == CUDA_SUCCESS) {
        give(dptr, address, bytes, pool, *info.context);
    }
    return true;
}

// Frees to the client's pool. False if the memory is not from it.
bool free_here(Session& s, const MemoryRange& range, CUstream stream, CUresult& result) {
    StreamInfo info;
    if (result = find_stream(stream, info); result != CUDA_SUCCESS) {
        return true;
    }
    StreamPool& pool = *s.pools[static_cast<std::size_t>(range.device)];
    const bool ordinary = range.kind == MemoryKind::device;
    if (!ordinary && !pool.holds(range.base)) {
        return false;
    }
    if (!s.memory.remove(range.base)) {  // before another thread can be given the address
        result = CUDA_ERROR_INVALID_VALUE;
        return true;
    }
    if (ordinary) {
        pool.adopt(range.base, range.bytes);
    }
    const StreamKey key = stream_key(stream);
    // No fence in the legacy stream, whose events would stall other streams, nor in a stream of another context, whose
    // events the current context cannot record.
    const bool may_fence = !is_legacy(key) && info.context == this_thread().current();
    const StreamPool::SetFence fence =
        may_fence ? StreamPool::SetFence([&s, stream] { return set_fence(s, stream); }) : StreamPool::SetFence{};
    (void)pool.free(range.base, {key, info.context}, s.commands_sent(), fence);
    return true;
}

}  // namespace

CUresult free_of_graph(Session& s, const MemoryRange& range, const std::function<CUresult()>& free) {
    // Noted before the driver frees it: another graph may get the address from then on.
    const GraphMemories::Freed freed = s.graph_memories.free(range.base);
    if (freed == GraphMemories::Freed::no) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (freed == GraphMemories::Freed::last) {
        s.memory.remove(range.base);
    } else {
        s.memory.set_idle(range.base, true);
    }
    const CUresult result = free();
    if (result != CUDA_SUCCESS) {
        s.graph_memories.undo_free(range.base, freed);
        if (freed == GraphMemories::Freed::last) {
            s.memory.add(range);
        } else {
            s.memory.set_idle(range.base, false);
        }
    }
    return result;
}

void forget_graph_memory(Session& s, const std::vector<CUdeviceptr>& addresses) {
    for (const CUdeviceptr address : addresses) {
        s.memory.remove(address);
    }
}

CUresult cuMemAllocAsync(CUdeviceptr* dptr, std::size_t bytesize, CUstream hStream) {
    ContextState* context = nullptr;
    CUresult result = begin_allocation(dptr, hStream, context);
    if (result != CUDA_SUCCESS || allocate_nothing(dptr, bytesize) ||
        allocate_here(dptr, bytesize, nullptr, hStream, result)) {
        return result;
    }
    CUdeviceptr address = 0;
    result = remote<calls::cuMemAllocAsync>(&address, bytesize, hStream);
    if (result == CUDA_SUCCESS) {
        give_from_driver(dptr, address, bytesize, nullptr, *context, hStream);
    }
    return result;
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr* dptr, std::size_t bytesize, CUmemoryPool pool, CUstream hStream) {
    ContextState* context = nullptr;
    CUresult result = begin_allocation(dptr, hStream, context);
    if (result != CUDA_SUCCESS || (pool != nullptr && (allocate_nothing(dptr, bytesize) ||
                                                       allocate_here(dptr, bytesize, pool, hStream, result)))) {
        return result;
    }
    CUdeviceptr address = 0;
    result = remote<calls::cuMemAllocFromPoolAsync>(&address, bytesize, pool, hStream);
    if (result == CUDA_SUCCESS) {
        give_from_driver(dptr, address, bytesize, pool, *context, hStream);
    }
    return result;
}

CUresult cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream) {
    CUresult result = CUDA_SUCCESS;
    Session* const s = session(result);
    if (s == nullptr || dptr == 0) {
        return result;
    }
    ContextState* context = nullptr;
    if (result = usable_context(context); result != CUDA_SUCCESS) {
        return result;
    }
    const auto range = s->memory.find(dptr);
    if (!range || range->base != dptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    // Memory of cuMemAlloc may be freed in stream order too.
    if (range->kind != MemoryKind::device && range->kind != MemoryKind::pool) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (result = may_use_memory_in(hStream); result != CUDA_SUCCESS) {
        return result;
    }
    // A free in a capture does not make the client forget the address: each launch may allocate and free it again.
    const std::optional<Captures::Status> captured = s->captures.find(stream_key(hStream));
    if (captured && captured->invalid) {
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    if (captured && !range->of_graph) {
        return CUDA_ERROR_INVALID_VALUE;  // a graph can only free what a graph has allocated
    }
    if (!captured && range->of_graph) {
        return free_of_graph(*s, *range, [&] { return remote<calls::cuMemFreeAsync>(dptr, hStream); });
    }
    if (!captured && free_here(*s, *range, hStream, result)) {
        return result;
    }
    const WaitForReplies if_captured(captured.has_value());  // only the driver knows who may free it
    result = remote<calls::cuMemFreeAsync>(dptr, hStream);
    if (result == CUDA_SUCCESS && captured) {
        s->graph_memories.add_captured(captured->id, dptr, GraphMemories::Does::frees);
    } else if (result == CUDA_SUCCESS) {
        s->memory.remove(dptr);
    }
    return result;
}

// ---- pools

CUresult cuDeviceSetMemPool(CUdevice dev, CUmemoryPool pool) {
    CUresult result = CUDA_SUCCESS;
    Session* const s = session(result);
    if (s == nullptr) {
        return result;
    }
    const bool known = is_device(*s, dev);
    CUmemoryPool standard = nullptr, current = nullptr;
    if (known) {
        (void)learn_pools(dev, standard, current);
    }
    const WaitForReplies exact;  // the result decides which pool is used from here on
    result = remote<calls::cuDeviceSetMemPool>(dev, pool);
    if (result == CUDA_SUCCESS && known) {
        DevicePools& pools = pools_of(dev);
        const Lock lock(pools.mutex);
        pools.current = pool;
    }
    return result;
}

CUresult cuMemBatchDecompressAsync(CUmemDecompressParams*, std::size_t, unsigned, std::size_t*, CUstream stream) {
    ContextState* context = nullptr;
    if (const CUresult result = usable_context(context); result != CUDA_SUCCESS) {
        return result;
    }
    Captures& captures = this_session().captures;
    const CUresult result = captures.any() ? captures.refuse_if_capturing(stream_key(stream)) : CUDA_SUCCESS;
    // As a GPU without an engine for it. gpupool's memory cannot be used with such an engine either.
    return result != CUDA_SUCCESS ? result : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuMemSetMemPool(CUmemLocation* location, CUmemAllocationType type, CUmemoryPool pool) {
    if (location != nullptr && location->type == CU_MEM_LOCATION_TYPE_DEVICE && type == CU_MEM_ALLOCATION_TYPE_PINNED) {
        return entry::cuDeviceSetMemPool(location->id, pool);
    }
    return remote<calls::cuMemSetMemPool>(location, type, pool);
}

CUresult cuMemPoolDestroy(CUmemoryPool pool) {
    const CUresult result = remote<calls::cuMemPoolDestroy>(pool);
    Session& s = this_session();
    for (CUdevice device = 0; result == CUDA_SUCCESS && is_device(s, device); ++device) {
        DevicePools& pools = pools_of(device);
        const Lock lock(pools.mutex);
        if (pools.current == pool) {
            pools.current = pools.standard;  // as the driver does
        }
    }
    return result;
}

CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void* value) {
    const CUresult result = remote<calls::cuMemPoolGetAttribute>(pool, attr, value);
    const StreamPool* const own = result == CUDA_SUCCESS ? own_pool(this_session(), pool) : nullptr;
    if (own == nullptr) {
        return result;
    }
    // Added to the driver's numbers, which count what graphs allocate from the pool.
    const StreamPool::Usage usage = own->usage();
    auto& bytes = *static_cast<cuuint64_t*>(value);
    switch (attr) {
        case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: bytes += usage.used_bytes; break;
        case CU_MEMPOOL_ATTR_USED_MEM_HIGH: bytes += usage.used_high_bytes; break;
        case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: bytes += usage.reserved_bytes; break;
        case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: bytes += usage.reserved_high_bytes; break;
        default: break;
    }
    return CUDA_SUCCESS;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void* value) {
    const CUresult result = remote<calls::cuMemPoolSetAttribute>(pool, attr, value);
    StreamPool* const own = result == CUDA_SUCCESS ? own_pool(this_session(), pool) : nullptr;
    if (own == nullptr) {
        return result;
    }
    switch (attr) {
        case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: own->set_release_threshold(*static_cast<cuuint64_t*>(value)); break;
        case CU_MEMPOOL_ATTR_USED_MEM_HIGH: own->reset_high(true, false); break;
        case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: own->reset_high(false, true); break;
        default: break;
    }
    return CUDA_SUCCESS;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, std::size_t minBytesToKeep) {
    const CUresult result = remote<calls::cuMemPoolTrimTo>(pool, minBytesToKeep);
    if (StreamPool* const own = result == CUDA_SUCCESS ? own_pool(this_session(), pool) : nullptr; own != nullptr) {
        own->release(minBytesToKeep);
    }
    return result;
}

}  // namespace gpupool::client::entry
