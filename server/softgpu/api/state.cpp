// The process-wide state: devices, contexts, current contexts, allocations.
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "server/softgpu/api/array.h"
#include "server/softgpu/api/entry_points.h"
#include "server/softgpu/api/settings.h"
#include "server/softgpu/exec/address_space.h"
#include "server/softgpu/graph/capture.h"

namespace gpupool::softgpu {

Mutex& state_mutex() {
    static Mutex& mutex = *new Mutex;
    return mutex;
}

State& state() {
    static State& instance = *new State;
    return instance;
}

std::vector<CUcontext>& context_stack() {
    thread_local std::vector<CUcontext> stack;
    return stack;
}

bool& in_host_function() {
    thread_local bool inside = false;
    return inside;
}

CUresult ready() {
    if (!state().initialised.load(std::memory_order_acquire)) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    return in_host_function() ? CUDA_ERROR_NOT_PERMITTED : CUDA_SUCCESS;
}

CUresult current_context(ContextPtr& result) {
    const CUresult error = current_stream_context(result);
    if (error == CUDA_SUCCESS && result->green()) {
        result = result->parent;
    }
    return error;
}

CUresult current_stream_context(ContextPtr& result) {
    if (const CUresult error = ready(); error != CUDA_SUCCESS) {
        return error;
    }
    if (context_stack().empty()) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    result = state().contexts.find(context_stack().back());
    if (result == nullptr) {
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    }
    if (!result->active.load()) {
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    }
    return result->status();
}

CUresult find_device(CUdevice device, Device*& result) {
    if (const CUresult error = ready(); error != CUDA_SUCCESS) {
        return error;
    }
    if (device < 0 || static_cast<std::size_t>(device) >= state().devices.size()) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    result = state().devices[static_cast<std::size_t>(device)].get();
    return CUDA_SUCCESS;
}

CUresult find_stream(CUstream handle, StreamPtr& result) {
    if (handle == nullptr && PerThreadDefault::on()) {
        handle = CU_STREAM_PER_THREAD;
    }
    if (handle == nullptr || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD) {
        ContextPtr context;
        if (const CUresult error = current_stream_context(context); error != CUDA_SUCCESS) {
            return error;
        }
        if (handle == CU_STREAM_PER_THREAD && context->green()) {
            return CUDA_ERROR_INVALID_HANDLE;
        }
        if (handle != CU_STREAM_PER_THREAD) {
            result = context->legacy;
            return CUDA_SUCCESS;
        }
        // The thread's default stream, a blocking stream that lives as long as the thread.
        thread_local std::map<unsigned long long, StreamPtr> own;
        StreamPtr& mine = own[context->id];
        if (mine == nullptr) {
            mine = std::make_shared<Stream>(*context, CU_STREAM_DEFAULT, 0);
            const Lock lock(context->order_mutex);
            context->add_stream(mine);
        }
        result = mine;
        return CUDA_SUCCESS;
    }
    if (const CUresult error = ready(); error != CUDA_SUCCESS) {
        return error;
    }
    result = state().streams.find(handle);
    if (result == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (result->context.green() && !result->context.active.load()) {
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    }
    return result->context.status();
}

bool Device::take(std::uint64_t bytes) {
    std::uint64_t used = used_bytes.load();
    while (used <= total_bytes && total_bytes - used >= bytes) {
        if (used_bytes.compare_exchange_weak(used, used + bytes)) {
            return true;
        }
    }
    return false;
}

void GraphMemoryCount::add(std::uint64_t more) {
    const std::uint64_t now = bytes.fetch_add(more) + more;
    std::uint64_t high = high_bytes.load();
    while (high < now && !high_bytes.compare_exchange_weak(high, now)) {
    }
}

bool MemoryPool::take(Device& owner, std::uint64_t bytes) {
    const Lock lock(mutex);
    const std::uint64_t used = used_bytes.load() + bytes;
    if (most_bytes != 0 && used > most_bytes) {
        return false;
    }
    const std::uint64_t kept = std::min(kept_bytes, bytes);
    if (!owner.take(bytes - kept)) {
        return false;
    }
    kept_bytes -= kept;
    used_bytes.store(used);
    used_high_bytes.store(std::max(used_high_bytes.load(), used));
    return true;
}

void MemoryPool::give(Device& owner, std::uint64_t bytes) {
    const Lock lock(mutex);
    used_bytes.fetch_sub(bytes);
    kept_bytes += bytes;
    keep_up_to(owner, release_threshold_bytes);
}

void MemoryPool::trim(Device& owner, std::uint64_t least_bytes) {
    const Lock lock(mutex);
    keep_up_to(owner, least_bytes);
}

void MemoryPool::keep_up_to(Device& owner, std::uint64_t reserved_bytes) {
    const std::uint64_t used = used_bytes.load();
    const std::uint64_t may_keep = reserved_bytes > used ? reserved_bytes - used : 0;
    if (kept_bytes > may_keep) {
        owner.give(kept_bytes - may_keep);
        kept_bytes = may_keep;
    }
}

void Context::open() {
    const Lock lock(order_mutex);
    id = state().next_id.fetch_add(1);
    error = CUDA_SUCCESS;
    stop = false;
    streams.clear();
    legacy = std::make_shared<Stream>(*this, green() ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT, 0);
    streams.push_back(legacy);
    limits = {{CU_LIMIT_STACK_SIZE, 1024},
              {CU_LIMIT_PRINTF_FIFO_SIZE, 1 << 20},
              {CU_LIMIT_MALLOC_HEAP_SIZE, 8 << 20},
              {CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH, 2},
              {CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT, 2048},
              {CU_LIMIT_MAX_L2_FETCH_GRANULARITY, 64},
              {CU_LIMIT_PERSISTING_L2_CACHE_SIZE, 0}};
    counted_bytes = !green() && device->take(settings().context_bytes) ? settings().context_bytes : 0;
    active = true;
}

void Context::close() {
    active = false;
    device->give(std::exchange(counted_bytes, 0));
    {
        const Lock lock(order_mutex);
        set_local_room(0);
    }
    stop = true;
    forget_context(*this);
    synchronize();
    const Context* self = this;
    state().streams.remove_if([=](const Stream& s) { return &s.context == self; });
    state().events.remove_if([=](const Event& e) { return e.context == self; });
    state().functions.remove_if([=](const Function& f) { return f.module->context.get() == self; });
    forget_textures(*this);
    forget_mipmaps(*this);
    state().arrays.remove_if([=](const Array& a) { return a.context == self; });
    state().modules.remove_if([=](const Module& m) { return m.context.get() == self; });
    for (const auto& allocation : state().allocations.end_context(this)) {
        release_memory(allocation);
    }
}

void Context::poison(CUresult code) {
    int none = CUDA_SUCCESS;
    owner().error.compare_exchange_strong(none, code);
}

void Context::add_stream(const StreamPtr& stream) {
    if (streams.size() >= prune_ended_at) {
        std::erase_if(streams, [](const std::weak_ptr<Stream>& each) { return each.expired(); });
        prune_ended_at = 2 * streams.size() + 64;
    }
    streams.push_back(stream);
    std::erase_if(awaited, [](const std::shared_ptr<Moment>& moment) { return moment->is_reached(); });
    for (const std::shared_ptr<Moment>& moment : awaited) {
        stream->submit([moment, this]() -> CUresult {
            moment->wait(stop);
            return CUDA_SUCCESS;
        });
    }
}

std::vector<StreamPtr> Context::all_streams() {
    std::vector<StreamPtr> result;
    for (auto at = streams.begin(); at != streams.end();) {
        if (auto stream = at->lock()) {
            result.push_back(std::move(stream));
            ++at;
        } else {
            at = streams.erase(at);
        }
    }
    return result;
}

void Context::synchronize() {
    for (const auto& [stream, sequence] : submitted_work()) {
        stream->wait(sequence);
    }
}

std::vector<std::pair<StreamPtr, std::uint64_t>> Context::submitted_work() {
    std::vector<std::pair<StreamPtr, std::uint64_t>> last;
    std::vector<ContextPtr> also;
    {
        const Lock lock(order_mutex);
        for (const auto& stream : all_streams()) {
            last.emplace_back(stream, stream->submitted());
        }
        for (const auto& green : greens) {
            if (auto context = green.lock()) {
                also.push_back(std::move(context));
            }
        }
    }
    for (const ContextPtr& green : also) {
        const auto more = green->submitted_work();
        last.insert(last.end(), more.begin(), more.end());
    }
    return last;
}

void Context::synchronize_exclusively() {
    const Lock exclusive(submission_mutex);
    synchronize();
}

bool Context::make_local_room(std::uint32_t bytes) {
    if (bytes <= local_bytes) {
        return true;
    }
    synchronize_exclusively();
    const Lock lock(order_mutex);
    if (bytes <= local_bytes) {
        return true;
    }
    if (!set_local_room(bytes)) {
        return false;
    }
    limits[CU_LIMIT_STACK_SIZE] = std::max<std::size_t>(limits[CU_LIMIT_STACK_SIZE], bytes);
    return true;
}

bool Context::set_local_room(std::uint32_t bytes) {
    const std::uint64_t threads = std::uint64_t{processor_count()} * kThreadsPerProcessor;
    const std::uint32_t before = local_bytes, after = std::max(bytes, kLocalBytes);
    if (after > before && !device->take((after - before) * threads)) {
        return false;
    }
    if (after < before) {
        device->give((before - after) * threads);
    }
    local_bytes = after;
    return true;
}

namespace {

// Memory of pools and graphs is accessible to every device: access rights are not tracked for it.
RangeAccess access_of(const Allocation& allocation) {
    const std::uint64_t owner = std::uint64_t{1} << allocation.device;
    if (allocation.kind == MemoryKind::mapped) {
        return {allocation.readers, allocation.writers, false};
    }
    const bool own =
        allocation.kind == MemoryKind::device && allocation.pool == nullptr && allocation.graph_memory == nullptr;
    return own ? RangeAccess{owner, owner, true} : RangeAccess{};
}

}  // namespace

void Allocations::add(const Allocation& allocation) {
    {
        const Lock lock(mutex_);
        by_begin_[allocation.begin] = allocation;
    }
    AddressSpace::instance().add(allocation.begin, allocation.size_bytes, access_of(allocation));
}

namespace {

// The entry of the allocation that contains the address, or end().
template <class Map>
auto containing(Map& by_begin, std::uint64_t address) {
    auto at = by_begin.upper_bound(address);
    if (at == by_begin.begin()) {
        return by_begin.end();
    }
    --at;
    return address - at->second.begin < at->second.size_bytes ? at : by_begin.end();
}

}  // namespace

bool Allocations::find(std::uint64_t address, Allocation& found) const {
    const SharedLock lock(mutex_);
    const auto at = containing(by_begin_, address);
    if (at == by_begin_.end()) {
        return false;
    }
    found = at->second;
    return true;
}

bool Allocations::set_sync_memops(std::uint64_t address, bool on) {
    const Lock lock(mutex_);
    const auto at = containing(by_begin_, address);
    if (at == by_begin_.end()) {
        return false;
    }
    at->second.sync_memops = on;
    return true;
}

bool Allocations::remove(std::uint64_t begin, Allocation& removed) {
    {
        const Lock lock(mutex_);
        const auto found = by_begin_.find(begin);
        if (found == by_begin_.end()) {
            return false;
        }
        removed = found->second;
        by_begin_.erase(found);
    }
    AddressSpace::instance().remove(removed.begin, removed.size_bytes);
    return true;
}

std::vector<Allocation> Allocations::end_context(const Context* context) {
    std::vector<Allocation> result;
    {
        const Lock lock(mutex_);
        for (auto at = by_begin_.begin(); at != by_begin_.end();) {
            // Mappings, and memory of pools and graphs, belong to the process and stay until they are freed.
            if (at->second.context != context || at->second.kind == MemoryKind::mapped) {
                ++at;
            } else if (at->second.pool != nullptr || at->second.graph_memory != nullptr) {
                at->second.context = nullptr;
                ++at;
            } else {
                result.push_back(at->second);
                at = by_begin_.erase(at);
            }
        }
    }
    for (const auto& allocation : result) {
        AddressSpace::instance().remove(allocation.begin, allocation.size_bytes);
    }
    return result;
}

void release_memory(const Allocation& allocation) {
    if (allocation.kind == MemoryKind::registered || allocation.kind == MemoryKind::mapped) {
        return;
    }
    // A graph keeps its addresses; only their contents are released.
    if (allocation.graph_memory != nullptr) {
        madvise(reinterpret_cast<void*>(allocation.begin), allocation.size_bytes, MADV_DONTNEED);
    } else {
        munmap(reinterpret_cast<void*>(allocation.begin), allocation.size_bytes);
    }
    if (allocation.counted_bytes == 0) {
        return;
    }
    Device& device = *state().devices[static_cast<std::size_t>(allocation.device)];
    if (allocation.pool != nullptr) {
        allocation.pool->give(device, allocation.counted_bytes);
    } else {
        device.give(allocation.counted_bytes);
    }
}

}  // namespace gpupool::softgpu
