// Arrays: created by the driver, and counted against the session's quota. Levels and planes end with what they are
// parts of.

#include "server/worker/dispatch/serve.h"
#include "server/worker/memory/array_memory.h"

namespace gpupool::worker::handlers {
namespace {

constexpr std::size_t kMaxArrays = 256u << 10;

template <class Call>
Outcome create(Worker& worker, Command& command, codec::Slots<Call>& slots, std::uint64_t client,
               std::optional<std::uint64_t> bytes) {
    const ContextState* const context = worker.context_of(command);
    if (context == nullptr || context->ending) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (!bytes || worker.memory.arrays.size() >= kMaxArrays ||
        !worker.memory.charge(worker.api, context->device, *bytes)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    worker.scheduler.enter(context);
    const CUresult result = slots.apply(
        [&](auto... arguments) { return driver::call(driver::Member<Call>::get(worker.api), arguments...); });
    if (result != CUDA_SUCCESS) {
        worker.memory.account.release(context->device, *bytes);
        return result;
    }
    worker.memory.arrays[client] = {{context->device, *bytes}, context};
    worker.memory_changed();
    return CUDA_SUCCESS;
}

}  // namespace

Outcome cuArrayCreate_v2(Worker& worker, Command& command, codec::Slots<calls::cuArrayCreate_v2>& slots) {
    using Call = calls::cuArrayCreate_v2;
    const CUDA_ARRAY_DESCRIPTOR& array = slots.at<Call::pAllocateArray>().object;
    return create(worker, command, slots, slots.at<Call::pHandle>().minted,
                  array_bytes({array.Width, array.Height, 0, array.Format, array.NumChannels, 0}, 1));
}

Outcome cuArray3DCreate_v2(Worker& worker, Command& command, codec::Slots<calls::cuArray3DCreate_v2>& slots) {
    using Call = calls::cuArray3DCreate_v2;
    return create(worker, command, slots, slots.at<Call::pHandle>().minted,
                  array_bytes(slots.at<Call::pAllocateArray>().object, 1));
}

Outcome cuMipmappedArrayCreate(Worker& worker, Command& command, codec::Slots<calls::cuMipmappedArrayCreate>& slots) {
    using Call = calls::cuMipmappedArrayCreate;
    return create(worker, command, slots, slots.at<Call::pHandle>().minted,
                  array_bytes(slots.at<Call::pMipmappedArrayDesc>().object, slots.at<Call::numMipmapLevels>().value));
}

Outcome cuMipmappedArrayGetLevel(Worker& worker, Command& command,
                                 codec::Slots<calls::cuMipmappedArrayGetLevel>& slots) {
    using Call = calls::cuMipmappedArrayGetLevel;
    CUmipmappedArray whole = slots.at<Call::hMipmappedArray>().value;
    const std::uint64_t owner = codec::to_wire(whole);
    auto& level = slots.at<Call::pLevelArray>();
    if (const CUresult result = driver_handle(worker, whole); result != CUDA_SUCCESS) {
        return result;
    }
    worker.scheduler.enter(worker.context_of(command));
    const CUresult result =
        driver::call(worker.api.cuMipmappedArrayGetLevel, level.value, whole, slots.at<Call::level>().value);
    if (result == CUDA_SUCCESS && level.minted != 0) {
        worker.handles.bind(codec::from_wire<CUarray>(level.minted), level.object);
        worker.handles.add_part(owner, level.minted);
    }
    return result;
}

Outcome cuArrayGetPlane(Worker& worker, Command& command, codec::Slots<calls::cuArrayGetPlane>& slots) {
    using Call = calls::cuArrayGetPlane;
    CUarray whole = slots.at<Call::hArray>().value;
    const std::uint64_t owner = codec::to_wire(whole);
    auto& plane = slots.at<Call::pPlaneArray>();
    if (const CUresult result = driver_handle(worker, whole); result != CUDA_SUCCESS) {
        return result;
    }
    worker.scheduler.enter(worker.context_of(command));
    const CUresult result =
        driver::call(worker.api.cuArrayGetPlane, plane.value, whole, slots.at<Call::planeIdx>().value);
    if (result == CUDA_SUCCESS && plane.object != whole && worker.handles.known_handle(plane.object) == nullptr) {
        worker.handles.add_part(owner, codec::to_wire(worker.handles.client_handle(plane.object)));
    }
    return result;
}

}  // namespace gpupool::worker::handlers
