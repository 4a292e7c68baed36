// Arrays: the driver's, but that what they take counts against the session's quota.

#include "server/worker/serve.h"

namespace gpupool::worker::handlers {
namespace {

constexpr std::size_t kMaxArrays = 256u << 10;

// Of one texel; of the compressed formats at most, since they go by blocks.
std::uint64_t texel_bytes(CUarray_format format, unsigned channels) {
    switch (format) {
        case CU_AD_FORMAT_UNSIGNED_INT8:
        case CU_AD_FORMAT_SIGNED_INT8: return channels;
        case CU_AD_FORMAT_UNSIGNED_INT16:
        case CU_AD_FORMAT_SIGNED_INT16:
        case CU_AD_FORMAT_HALF: return 2u * channels;
        case CU_AD_FORMAT_UNSIGNED_INT32:
        case CU_AD_FORMAT_SIGNED_INT32:
        case CU_AD_FORMAT_FLOAT: return 4u * channels;
        default: break;
    }
    const auto number = static_cast<unsigned>(format);
    if (number >= CU_AD_FORMAT_BC1_UNORM && number <= CU_AD_FORMAT_BC7_UNORM_SRGB) {
        return 1;
    }
    return 4u * std::max(1u, channels);
}

// None where no memory could hold it.
std::optional<std::uint64_t> array_bytes(CUDA_ARRAY3D_DESCRIPTOR array, unsigned levels) {
    const bool layered = (array.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) != 0;
    std::uint64_t total = 0;
    for (unsigned level = 0; level < std::max(1u, std::min(levels, 64u)); ++level) {
        std::uint64_t bytes = texel_bytes(array.Format, array.NumChannels);
        for (const std::size_t extent : {array.Width, array.Height, array.Depth}) {
            if (__builtin_mul_overflow(bytes, std::max<std::size_t>(1, extent), &bytes)) {
                return std::nullopt;
            }
        }
        if (__builtin_add_overflow(total, bytes, &total)) {
            return std::nullopt;
        }
        array.Width /= 2;
        array.Height /= 2;
        array.Depth = layered ? array.Depth : array.Depth / 2;
    }
    return total;
}

template <class Call>
Outcome create(Worker& worker, Command& command, codec::Slots<Call>& slots, std::uint64_t client,
               std::optional<std::uint64_t> bytes) {
    const ContextState* const context = worker.context_of(command);
    if (context == nullptr || context->ending) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (!bytes || worker.memory.arrays.size() >= kMaxArrays || !worker.memory.charge(worker.api, context->device, *bytes)) {
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

}  // namespace gpupool::worker::handlers
