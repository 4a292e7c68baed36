// Arrays: created by the driver, and counted against the session's quota. Levels and planes end with what they are
// parts of.

#include "server/worker/handlers/handlers.h"
#include "server/worker/memory/array_memory.h"

namespace gpupool::worker::handlers {
namespace {

constexpr std::size_t kMaxArrays = 256u << 10;
constexpr std::size_t kMaxMappings = 64u << 10;  // of one call

// Memory of such arrays is that of cuMemCreate, which was counted when it was made.
bool has_own_memory(const CUDA_ARRAY3D_DESCRIPTOR& array) {
    return (array.Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) == 0;
}

std::optional<std::uint64_t> counted_bytes(const CUDA_ARRAY3D_DESCRIPTOR& array, unsigned levels) {
    return has_own_memory(array) ? array_bytes(array, levels) : 0;
}

template <class Call>
Outcome create(SessionView& session, Command& command, codec::Slots<Call>& slots, std::uint64_t client,
               std::optional<std::uint64_t> bytes) {
    const ContextState* const context = session.context_of(command);
    if (context == nullptr || context->ending) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (!bytes || session.memory.arrays.size() >= kMaxArrays ||
        !session.memory.charge(session.api, context->device, *bytes)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    session.scheduler.enter(context);
    const CUresult result = slots.apply(
        [&](auto... arguments) { return driver::call(driver::Member<Call>::get(session.api), arguments...); });
    if (result != CUDA_SUCCESS) {
        session.memory.account.release(context->device, *bytes);
        return result;
    }
    session.memory.arrays[client] = {{context->device, *bytes}, &context->owner(), {}};
    return CUDA_SUCCESS;
}

}  // namespace

Outcome cuArrayCreate_v2(SessionView& session, Command& command, codec::Slots<calls::cuArrayCreate_v2>& slots) {
    using Call = calls::cuArrayCreate_v2;
    const CUDA_ARRAY_DESCRIPTOR& array = slots.at<Call::pAllocateArray>().object;
    return create(session, command, slots, slots.at<Call::pHandle>().minted,
                  array_bytes({array.Width, array.Height, 0, array.Format, array.NumChannels, 0}, 1));
}

Outcome cuArray3DCreate_v2(SessionView& session, Command& command, codec::Slots<calls::cuArray3DCreate_v2>& slots) {
    using Call = calls::cuArray3DCreate_v2;
    return create(session, command, slots, slots.at<Call::pHandle>().minted,
                  counted_bytes(slots.at<Call::pAllocateArray>().object, 1));
}

Outcome cuMipmappedArrayCreate(SessionView& session, Command& command,
                               codec::Slots<calls::cuMipmappedArrayCreate>& slots) {
    using Call = calls::cuMipmappedArrayCreate;
    return create(session, command, slots, slots.at<Call::pHandle>().minted,
                  counted_bytes(slots.at<Call::pMipmappedArrayDesc>().object, slots.at<Call::numMipmapLevels>().value));
}

Outcome cuMipmappedArrayGetLevel(SessionView& session, Command& command,
                                 codec::Slots<calls::cuMipmappedArrayGetLevel>& slots) {
    using Call = calls::cuMipmappedArrayGetLevel;
    CUmipmappedArray whole = slots.at<Call::hMipmappedArray>().value;
    const std::uint64_t owner = codec::to_wire(whole);
    auto& level = slots.at<Call::pLevelArray>();
    if (const CUresult result = driver_handle(session, whole); result != CUDA_SUCCESS) {
        return result;
    }
    session.scheduler.enter(session.context_of(command));
    const CUresult result =
        driver::call(session.api.cuMipmappedArrayGetLevel, level.value, whole, slots.at<Call::level>().value);
    if (result == CUDA_SUCCESS && level.minted != 0) {
        session.handles.bind(codec::from_wire<CUarray>(level.minted), level.object);
        session.handles.add_part(owner, level.minted);
    }
    return result;
}

Outcome cuArrayGetPlane(SessionView& session, Command& command, codec::Slots<calls::cuArrayGetPlane>& slots) {
    using Call = calls::cuArrayGetPlane;
    CUarray whole = slots.at<Call::hArray>().value;
    const std::uint64_t owner = codec::to_wire(whole);
    auto& plane = slots.at<Call::pPlaneArray>();
    if (const CUresult result = driver_handle(session, whole); result != CUDA_SUCCESS) {
        return result;
    }
    session.scheduler.enter(session.context_of(command));
    const CUresult result =
        driver::call(session.api.cuArrayGetPlane, plane.value, whole, slots.at<Call::planeIdx>().value);
    if (result == CUDA_SUCCESS && plane.object != whole && session.handles.known_handle(plane.object) == nullptr) {
        session.handles.add_part(owner, codec::to_wire(session.handles.client_handle(plane.object)));
    }
    return result;
}

namespace {

// The client's handle of the array that a mapping names.
std::uint64_t array_of(CUarrayMapInfo& mapping) {
    std::uint64_t client = 0;
    codec::StructTraits<CUarrayMapInfo>::visit(mapping, [&](auto& handle) { client = codec::to_wire(handle); });
    return client;
}

bool maps(const CUarrayMapInfo& mapping) {
    return codec::number_of(mapping.memOperationType) == CU_MEM_OPERATION_TYPE_MAP;
}

// Translates the array's handle, and checks that the memory is the client's.
CUresult read_mapping(const SessionView& session, CUarrayMapInfo& mapping) {
    CUresult result = array_of(mapping) == 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    codec::StructTraits<CUarrayMapInfo>::visit(
        mapping, [&](auto& handle) { result = result == CUDA_SUCCESS ? driver_handle(session, handle) : result; });
    const bool known = !maps(mapping) || session.memory.allocations.contains(mapping.memHandle.memHandle);
    return result == CUDA_SUCCESS && !known ? CUDA_ERROR_INVALID_VALUE : result;
}

}  // namespace

Outcome cuMemMapArrayAsync(SessionView& session, Command& command, codec::Slots<calls::cuMemMapArrayAsync>& slots) {
    using Call = calls::cuMemMapArrayAsync;
    std::optional<Submission> submission;
    if (auto outcome = enter<Call>(session, command, slots.at<Call::hStream>().value, submission); !submission) {
        return outcome;
    }
    StreamState& stream = submission->stream();
    std::vector<CUarrayMapInfo>& mappings = slots.at<Call::mapInfoList>().object;
    CUresult result = mappings.size() > kMaxMappings ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    std::vector<std::uint64_t> arrays;
    for (CUarrayMapInfo& mapping : mappings) {
        arrays.push_back(array_of(mapping));
        result = result == CUDA_SUCCESS ? read_mapping(session, mapping) : result;
    }
    if (result == CUDA_SUCCESS) {
        result = session.scheduler.enter(stream.context);
    }
    if (result == CUDA_SUCCESS) {
        result = driver::call(*submission, session.api.cuMemMapArrayAsync, slots.at<Call::mapInfoList>().value,
                              slots.at<Call::count>().value, stream.driver);
    }
    for (std::size_t i = 0; i < mappings.size() && result == CUDA_SUCCESS; ++i) {
        const auto array = session.memory.arrays.find(arrays[i]);
        if (maps(mappings[i]) && array != session.memory.arrays.end()) {
            const auto& memory = session.memory.allocations[mappings[i].memHandle.memHandle];
            session.memory.note_tiles(array->second, memory.allocation);
        }
    }
    return result;
}

}  // namespace gpupool::worker::handlers
