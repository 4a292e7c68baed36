// Device memory: slabs at addresses that the client chose, and allocations that the driver places.

#include "common/unique_fd.h"
#include "server/worker/handlers/handlers.h"
#include "server/worker/scheduling/driver_door.h"

namespace gpupool::worker::handlers {
namespace {

// Limit on the allocations of each kind: small ones take more memory of the session than of the device.
constexpr std::size_t kMaxAllocations = 1u << 20;

CUmemAllocationProp slab_properties(SessionView& session, CUdevice device) {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    // Exportable from the start: existing memory cannot be made shareable between processes later.
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    int rdma = 0;
    driver::call(session.api.cuDeviceGetAttribute, &rdma, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
                 device);
    properties.allocFlags.gpuDirectRDMACapable = rdma != 0 ? 1 : 0;
    return properties;
}

CUresult create_allocation(SessionView& session, CUdevice device, std::size_t bytes,
                           CUmemGenericAllocationHandle& allocation) {
    CUmemAllocationProp properties = slab_properties(session, device);
    CUresult result = driver::call(session.api.cuMemCreate, &allocation, bytes,
                                   static_cast<const CUmemAllocationProp*>(&properties), 0ull);
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY) {
        // The device offers neither property: plain memory is better than none.
        properties.allocFlags.gpuDirectRDMACapable = 0;
        properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
        result = driver::call(session.api.cuMemCreate, &allocation, bytes,
                              static_cast<const CUmemAllocationProp*>(&properties), 0ull);
    }
    return result;
}

CUresult map_slab(SessionView& session, CUdevice device, CUdeviceptr address, std::size_t bytes,
                  CUmemGenericAllocationHandle allocation) {
    CUresult result = driver::call(session.api.cuMemMap, address, bytes, std::size_t{0}, allocation, 0ull);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    std::vector<CUmemAccessDesc> access = {{{CU_MEM_LOCATION_TYPE_DEVICE, device}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE}};
    for (const auto& [reader, owner] : session.memory.peers) {
        if (owner == device) {
            access.push_back({{CU_MEM_LOCATION_TYPE_DEVICE, reader}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
        }
    }
    result = driver::call(session.api.cuMemSetAccess, address, bytes,
                          static_cast<const CUmemAccessDesc*>(access.data()), access.size());
    if (result != CUDA_SUCCESS) {
        driver::call(session.api.cuMemUnmap, address, bytes);
    }
    return result;
}

bool overlaps_slab(const SessionView& session, std::uint64_t address, std::uint64_t bytes) {
    const auto next = session.memory.slabs.lower_bound(address);
    if (next != session.memory.slabs.end() && next->first < address + bytes) {
        return true;
    }
    return next != session.memory.slabs.begin() && std::prev(next)->first + std::prev(next)->second.bytes > address;
}

CUresult commit_slab(SessionView& session, const Command& command, CUdevice device, CUdeviceptr address,
                     std::size_t bytes) {
    if (bytes == 0 || bytes % kLeastSlabBytes != 0 || address % kLeastSlabBytes != 0 ||
        !session.memory.window.contains(address, bytes) || overlaps_slab(session, address, bytes)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!session.memory.charge(session.api, device, bytes)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    session.scheduler.enter(session.context_of(command));
    CUmemGenericAllocationHandle allocation = 0;
    CUresult result = create_allocation(session, device, bytes, allocation);
    if (result == CUDA_SUCCESS) {
        result = map_slab(session, device, address, bytes, allocation);
        if (result != CUDA_SUCCESS) {
            driver::call(session.api.cuMemRelease, allocation);
        }
    }
    if (result != CUDA_SUCCESS) {
        session.memory.account.release(device, bytes);
        return result;
    }
    session.memory.slabs[address] = {device, bytes, allocation};
    return CUDA_SUCCESS;
}

// Free and total memory of the device, limited by the session's quota. `device` must be the current context's.
CUresult memory_info(MemoryView& session, CUdevice device, std::size_t& free_bytes, std::size_t& total_bytes) {
    const CUresult result = driver::call(session.api.cuMemGetInfo_v2, &free_bytes, &total_bytes);
    if (const std::uint64_t quota = session.memory.account.quota_bytes(device); result == CUDA_SUCCESS && quota != 0) {
        // While another call waits in the driver, only cuMemGetInfo is known not to block.
        if (!session.door.closed()) {
            session.memory.recount(session.api);
        }
        total_bytes = std::min<std::uint64_t>(total_bytes, quota);
        free_bytes = std::min<std::uint64_t>(free_bytes, session.memory.account.free_bytes(device));
    }
    return result;
}

// Is enough memory free for a slab that is not needed yet, without affecting other allocations, the driver's own
// included?
bool to_spare(MemoryView& session, const Command& command, CUdevice device, std::size_t bytes) {
    constexpr std::size_t kFreeDivisor = 16;  // a sixteenth of the memory has to stay free
    const ContextState* const context = session.context_of(command);
    std::size_t free_bytes = 0, total_bytes = 0;
    if (context == nullptr || context->device != device || session.scheduler.enter(context) != CUDA_SUCCESS ||
        memory_info(session, device, free_bytes, total_bytes) != CUDA_SUCCESS) {
        return false;
    }
    return bytes <= free_bytes && free_bytes - bytes >= total_bytes / kFreeDivisor;
}

}  // namespace

Outcome gpSlabCreate(SessionView& session, Command& command, codec::Slots<calls::gpSlabCreate>& slots) {
    using Call = calls::gpSlabCreate;
    return commit_slab(session, command, slots.at<Call::device>().value, slots.at<Call::address>().value,
                       slots.at<Call::bytes>().value);
}

Outcome gpSlabPrepare(MemoryView& session, Command& command, codec::Slots<calls::gpSlabPrepare>& slots) {
    using Call = calls::gpSlabPrepare;
    const CUdeviceptr address = slots.at<Call::address>().value;
    const CUdevice device = slots.at<Call::device>().value;
    const std::size_t bytes = slots.at<Call::bytes>().value;
    const CUresult result = to_spare(session, command, device, bytes)
                                ? commit_slab(session, command, device, address, bytes)
                                : CUDA_ERROR_OUT_OF_MEMORY;
    session.answers.notify(codec::NoticeType::slab_prepared, codec::SlabPreparedNotice{address, result, 0});
    return CUDA_SUCCESS;
}

Outcome gpSlabDestroy(SessionView& session, Command& command, codec::Slots<calls::gpSlabDestroy>& slots) {
    using Call = calls::gpSlabDestroy;
    const CUdeviceptr address = slots.at<Call::address>().value;
    const auto it = session.memory.slabs.find(address);
    if (it == session.memory.slabs.end() || it->second.bytes != slots.at<Call::bytes>().value) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    session.scheduler.enter(session.context_of(command));
    const Slab slab = it->second;
    session.memory.slabs.erase(it);
    CUresult result = driver::call(session.api.cuMemUnmap, address, slab.bytes);
    const CUresult released = driver::call(session.api.cuMemRelease, slab.allocation);
    session.memory.account.release(slab.device, slab.bytes);
    return result != CUDA_SUCCESS ? result : released;
}

Outcome cuMemGetInfo_v2(MemoryView& session, Command& command, codec::Slots<calls::cuMemGetInfo_v2>& slots) {
    using Call = calls::cuMemGetInfo_v2;
    const ContextState* context = session.context_of(command);
    if (context == nullptr) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    session.scheduler.enter(context);
    std::size_t free_bytes = 0, total_bytes = 0;
    const CUresult result = memory_info(session, context->device, free_bytes, total_bytes);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    slots.at<Call::free>().object = free_bytes;
    slots.at<Call::total>().object = total_bytes;
    return CUDA_SUCCESS;
}

Outcome cuDeviceGraphMemTrim(SessionView& session, Command& command, codec::Slots<calls::cuDeviceGraphMemTrim>& slots) {
    session.scheduler.enter(session.context_of(command));
    const CUresult result =
        session.memory.graphs.trim(session.api, slots.at<calls::cuDeviceGraphMemTrim::device>().value);
    return result;
}

// Only pools of device memory, whose amount is accounted for.
Outcome cuMemPoolCreate(SessionView& session, Command& command, codec::Slots<calls::cuMemPoolCreate>& slots) {
    using Call = calls::cuMemPoolCreate;
    const CUmemPoolProps* const properties = slots.at<Call::poolProps>().value;
    if (slots.at<Call::pool>().value == nullptr || properties == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
        return properties->location.type == CU_MEM_LOCATION_TYPE_INVALID ? CUDA_ERROR_INVALID_VALUE
                                                                         : CUDA_ERROR_NOT_SUPPORTED;
    }
    if (properties->handleTypes != CU_MEM_HANDLE_TYPE_NONE) {
        return CUDA_ERROR_NOT_SUPPORTED;  // pools are not shared between processes
    }
    session.scheduler.enter(session.context_of(command));
    CUmemoryPool& pool = slots.at<Call::pool>().object;
    const CUresult result = driver::call(session.api.cuMemPoolCreate, &pool, properties);
    if (result == CUDA_SUCCESS) {
        session.memory.pools.made(pool, properties->location.id);
    }
    return result;
}

Outcome cuMemPoolTrimTo(SessionView& session, Command& command, codec::Slots<calls::cuMemPoolTrimTo>& slots) {
    using Call = calls::cuMemPoolTrimTo;
    CUmemoryPool pool = slots.at<Call::pool>().value;
    if (const CUresult result = driver_handle(session, pool); result != CUDA_SUCCESS) {
        return result;
    }
    session.scheduler.notice_idle(session.objects);  // as the program's own synchronization would have done
    const ContextState* const context = session.context_of(command);
    const auto result = std::make_shared<CUresult>(CUDA_SUCCESS);
    session.waiting_calls.run(
        [&api = session.api, driver = context == nullptr ? nullptr : context->driver, pool,
         keep = slots.at<Call::minBytesToKeep>().value,
         result] { *result = in_context(api, driver, [&] { return driver::call(api.cuMemPoolTrimTo, pool, keep); }); },
        [&session, command, result] { session.answers.give(command, *result); });
    return Outcome::answered();
}

// The client's allocations from a device's default pool lie in slabs (client/core/memory/stream_pool.h): access to
// slabs follows access to that pool.
Outcome cuMemPoolSetAccess(SessionView& session, Command& command, codec::Slots<calls::cuMemPoolSetAccess>& slots) {
    using Call = calls::cuMemPoolSetAccess;
    const HandleTable::Lookup found = session.handles.find(slots.at<Call::pool>().value);
    if (found.found != HandleTable::Found::yes) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const auto pool = codec::from_wire<CUmemoryPool>(found.driver);
    const std::vector<CUmemAccessDesc>& wanted = slots.at<Call::map>().object;
    session.scheduler.enter(session.context_of(command));
    const CUresult result =
        driver::call(session.api.cuMemPoolSetAccess, pool, slots.at<Call::map>().value, slots.at<Call::count>().value);
    for (CUdevice owner = 0; result == CUDA_SUCCESS && owner < session.memory.device_count(); ++owner) {
        CUmemoryPool standard = nullptr;
        if (driver::call(session.api.cuDeviceGetDefaultMemPool, &standard, owner) != CUDA_SUCCESS || standard != pool) {
            continue;
        }
        for (const CUmemAccessDesc& access : wanted) {
            if (access.location.type == CU_MEM_LOCATION_TYPE_DEVICE && access.location.id != owner) {
                share_slabs(session.api, session.memory, owner, access.location.id,
                            access.flags != CU_MEM_ACCESS_FLAGS_PROT_NONE);
            }
        }
    }
    return result;
}

Outcome cuMemCreate(SessionView& session, Command& command, codec::Slots<calls::cuMemCreate>& slots) {
    using Call = calls::cuMemCreate;
    const auto& properties = slots.at<Call::prop>();
    if (properties.value == nullptr || slots.at<Call::handle>().value == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    // As a driver answers that cannot export such handles. A descriptor is for imports within the session.
    if ((static_cast<unsigned>(properties.object.requestedHandleTypes) & CU_MEM_HANDLE_TYPE_FABRIC) != 0) {
        return CUDA_ERROR_NOT_PERMITTED;
    }
    const CUdevice device = properties.object.location.id;
    const std::uint64_t bytes = slots.at<Call::size>().value;
    switch (properties.object.location.type) {
        case CU_MEM_LOCATION_TYPE_DEVICE: break;
        case CU_MEM_LOCATION_TYPE_HOST:
        case CU_MEM_LOCATION_TYPE_HOST_NUMA:
        case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
            return CUDA_ERROR_NOT_SUPPORTED;  // clients may not allocate the server's host memory
        default: return CUDA_ERROR_INVALID_VALUE;
    }
    if (device < 0 || device >= session.memory.device_count()) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    if (session.memory.allocations.size() >= kMaxAllocations || !session.memory.charge(session.api, device, bytes)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    session.scheduler.enter(session.context_of(command));
    const CUresult result =
        slots.apply([&](auto... arguments) { return driver::call(session.api.cuMemCreate, arguments...); });
    if (result != CUDA_SUCCESS) {
        session.memory.account.release(device, bytes);
        return result;
    }
    auto made = std::make_shared<SharedAllocation>();
    made->device = device;
    made->bytes = bytes;
    session.memory.add_reference(slots.at<Call::handle>().object, made);
    return CUDA_SUCCESS;
}

Outcome gpMemReopen(SessionView& session, Command& command, codec::Slots<calls::gpMemReopen>& slots) {
    using Call = calls::gpMemReopen;
    const auto it = session.memory.allocations.find(slots.at<Call::given>().value);
    if (it == session.memory.allocations.end() || slots.at<Call::handle>().value == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (session.memory.allocations.size() >= kMaxAllocations) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    session.scheduler.enter(session.context_of(command));
    int descriptor = -1;
    constexpr auto kType = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    CUresult result =
        driver::call(session.api.cuMemExportToShareableHandle, static_cast<void*>(&descriptor), it->first, kType, 0ull);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    const UniqueFd file(descriptor);
    CUmemGenericAllocationHandle& made = slots.at<Call::handle>().object;
    result = driver::call(session.api.cuMemImportFromShareableHandle, &made,
                          reinterpret_cast<void*>(static_cast<std::intptr_t>(file.get())), kType);
    if (result == CUDA_SUCCESS) {
        session.memory.add_reference(made, it->second.allocation);
    }
    return result;
}

Outcome cuMemRelease(SessionView& session, Command& command, codec::Slots<calls::cuMemRelease>& slots) {
    const CUmemGenericAllocationHandle handle = slots.at<calls::cuMemRelease::handle>().value;
    const auto it = session.memory.allocations.find(handle);
    if (it == session.memory.allocations.end()) {
        return CUDA_ERROR_INVALID_VALUE;  // not an allocation of the client
    }
    session.scheduler.enter(session.context_of(command));
    const CUresult result = driver::call(session.api.cuMemRelease, handle);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    const std::shared_ptr<SharedAllocation> allocation = it->second.allocation;
    --allocation->references;
    if (--it->second.references == 0) {
        session.memory.allocations.erase(it);  // the driver may reuse the handle
    }
    session.memory.release_if_unused(*allocation);
    return result;
}

Outcome cuMemMap(SessionView& session, Command& command, codec::Slots<calls::cuMemMap>& slots) {
    using Call = calls::cuMemMap;
    const auto it = session.memory.allocations.find(slots.at<Call::handle>().value);
    if (it == session.memory.allocations.end()) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (session.memory.mappings.size() >= kMaxAllocations) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    session.scheduler.enter(session.context_of(command));
    const CUresult result =
        slots.apply([&](auto... arguments) { return driver::call(session.api.cuMemMap, arguments...); });
    if (result == CUDA_SUCCESS) {
        session.memory.mappings[slots.at<Call::ptr>().value] = {slots.at<Call::size>().value, it->second.allocation};
        ++it->second.allocation->mappings;
    }
    return result;
}

Outcome cuMemUnmap(SessionView& session, Command& command, codec::Slots<calls::cuMemUnmap>& slots) {
    using Call = calls::cuMemUnmap;
    const CUdeviceptr address = slots.at<Call::ptr>().value;
    const std::size_t bytes = slots.at<Call::size>().value;
    if (bytes > ~std::uint64_t{0} - address || overlaps_slab(session, address, bytes)) {
        return CUDA_ERROR_INVALID_VALUE;  // slabs are unmapped by gpSlabDestroy
    }
    session.scheduler.enter(session.context_of(command));
    const CUresult result = driver::call(session.api.cuMemUnmap, address, bytes);
    auto& mappings = session.memory.mappings;
    for (auto it = mappings.lower_bound(address);
         result == CUDA_SUCCESS && it != mappings.end() && it->first + it->second.bytes <= address + bytes;) {
        SharedAllocation& allocation = *it->second.allocation;
        --allocation.mappings;
        session.memory.release_if_unused(allocation);
        it = mappings.erase(it);
    }
    return result;
}

Outcome cuMemRetainAllocationHandle(SessionView& session, Command& command,
                                    codec::Slots<calls::cuMemRetainAllocationHandle>& slots) {
    using Call = calls::cuMemRetainAllocationHandle;
    const auto address = reinterpret_cast<std::uint64_t>(slots.at<Call::addr>().value);
    auto mapping = session.memory.mappings.upper_bound(address);
    if (mapping == session.memory.mappings.begin() ||
        (--mapping)->first + mapping->second.bytes <= address) {  // as the driver does for memory of cuMemAlloc
        return CUDA_ERROR_INVALID_VALUE;
    }
    session.scheduler.enter(session.context_of(command));
    const CUresult result = slots.apply(
        [&](auto... arguments) { return driver::call(session.api.cuMemRetainAllocationHandle, arguments...); });
    if (result == CUDA_SUCCESS) {
        session.memory.add_reference(slots.at<Call::handle>().object, mapping->second.allocation);
    }
    return result;
}

namespace {

// `pool`: null for the device's current pool.
template <class Call, class Allocate>
Outcome allocate_in_order(SessionView& session, Command& command, codec::Slots<Call>& slots, CUmemoryPool pool,
                          Allocate allocate) {
    CUresult result = CUDA_SUCCESS;
    std::optional<Submission> submission;
    if (auto outcome = enter<Call>(session, command, slots.template at<Call::hStream>().value, submission);
        !submission) {
        return outcome;
    }
    StreamState* const stream = &submission->stream();
    const std::uint64_t bytes = slots.template at<Call::bytesize>().value;
    session.scheduler.enter(stream->context);
    if (stream->capturing) {
        // The graph takes memory when it is launched.
        return allocate(*submission, slots.template at<Call::dptr>().object, bytes);
    }
    if (pool == nullptr) {
        result = driver::call(session.api.cuDeviceGetMemPool, &pool, stream->context->device);
    }
    if (result == CUDA_SUCCESS && session.memory.pools.allocations() >= kMaxAllocations) {
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (result == CUDA_SUCCESS) {
        result = session.memory.pools.allocate(
            session.api, pool, bytes, [&](CUdeviceptr& address) { return allocate(*submission, address, bytes); },
            [&](CUdeviceptr address) {
                driver::call(*submission, session.api.cuMemFreeAsync, address, stream->driver);
            },
            slots.template at<Call::dptr>().object);
    }
    return result;
}

}  // namespace

Outcome cuMemAllocAsync(SessionView& session, Command& command, codec::Slots<calls::cuMemAllocAsync>& slots) {
    const auto allocate = [&](const Submission& submission, CUdeviceptr& address, std::size_t bytes) {
        return driver::call(submission, session.api.cuMemAllocAsync, &address, bytes, submission.stream().driver);
    };
    return allocate_in_order(session, command, slots, nullptr, allocate);
}

Outcome cuMemAllocFromPoolAsync(SessionView& session, Command& command,
                                codec::Slots<calls::cuMemAllocFromPoolAsync>& slots) {
    CUmemoryPool pool = slots.at<calls::cuMemAllocFromPoolAsync::pool>().value;
    if (session.handles.translate(pool) != CUDA_SUCCESS) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const auto allocate = [&](const Submission& submission, CUdeviceptr& address, std::size_t bytes) {
        return driver::call(submission, session.api.cuMemAllocFromPoolAsync, &address, bytes, pool,
                            submission.stream().driver);
    };
    return allocate_in_order(session, command, slots, pool, allocate);
}

Outcome cuMemFreeAsync(SessionView& session, Command& command, codec::Slots<calls::cuMemFreeAsync>& slots) {
    using Call = calls::cuMemFreeAsync;
    std::optional<Submission> submission;
    if (auto outcome = enter<Call>(session, command, slots.at<Call::hStream>().value, submission); !submission) {
        return outcome;
    }
    StreamState* const stream = &submission->stream();
    const CUdeviceptr address = slots.at<Call::dptr>().value;
    session.scheduler.enter(stream->context);
    const CUresult result = driver::call(*submission, session.api.cuMemFreeAsync, address, stream->driver);
    if (result == CUDA_SUCCESS && !stream->capturing) {
        session.memory.pools.freed(address);
    }
    return result;
}

// The driver's call waits for the GPU.
Outcome cuMemFree_v2(SessionView& session, Command& command, codec::Slots<calls::cuMemFree_v2>& slots) {
    const CUdeviceptr address = slots.at<calls::cuMemFree_v2::dptr>().value;
    // Memory of pools and graphs outlives its context, and can be freed without any.
    const ContextState* const context = session.context_of(command);
    const CUcontext driver_context = context == nullptr ? nullptr : context->driver;
    const auto result = std::make_shared<CUresult>(CUDA_SUCCESS);
    const auto allocation = session.memory.pools.take(address);
    session.waiting_calls.run(
        [&api = session.api, driver = driver_context, address, result] {
            *result = in_context(api, driver, [&] { return driver::call(api.cuMemFree_v2, address); });
        },
        [&session, command, address, allocation, result] {
            if (allocation) {
                session.memory.pools.end_free(address, *allocation, *result == CUDA_SUCCESS);
            }
            session.answers.give(command, *result);
        });
    return Outcome::answered();
}

}  // namespace gpupool::worker::handlers
