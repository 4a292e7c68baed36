#include "client/core/session/contexts.h"

#include "protocol/codec/handles.h"

namespace gpupool::client {

void Contexts::make_primaries(int device_count) {
    const Lock lock(primary_mutex);
    primary_references.resize(static_cast<std::size_t>(device_count));
    primary_greens.resize(static_cast<std::size_t>(device_count));
    for (int device = 0; device < device_count; ++device) {
        primaries_.push_back(&add(device, 0, true));
    }
}

ContextState* Contexts::find(CUcontext handle) const {
    const SharedLock lock(mutex_);
    const auto it = by_handle_.find(handle);
    return it == by_handle_.end() ? nullptr : it->second;
}

ContextState& Contexts::add(CUdevice device, unsigned flags, bool primary) {
    const Lock lock(mutex_);
    const std::uint64_t serial = next_serial_++;
    ContextState& state = states_.emplace_back();
    count_ = states_.size();
    state.handle = codec::from_wire<CUcontext>(codec::make_handle(codec::HandleKind::context, serial));
    state.id = serial;
    state.device = device;
    state.flags = flags;
    state.primary = primary;
    by_handle_[state.handle] = &state;
    return state;
}

ContextState& Contexts::add_green(ContextState& primary) {
    ContextState& state = add(primary.device, primary.flags, false);
    state.parent = &primary;
    state.unordered_streams = true;
    return state;
}

bool is_sticky(CUresult result) noexcept {
    switch (result) {
        case CUDA_ERROR_ECC_UNCORRECTABLE:
        case CUDA_ERROR_ILLEGAL_ADDRESS:
        case CUDA_ERROR_LAUNCH_TIMEOUT:
        case CUDA_ERROR_ASSERT:
        case CUDA_ERROR_HARDWARE_STACK_ERROR:
        case CUDA_ERROR_ILLEGAL_INSTRUCTION:
        case CUDA_ERROR_MISALIGNED_ADDRESS:
        case CUDA_ERROR_INVALID_ADDRESS_SPACE:
        case CUDA_ERROR_INVALID_PC:
        case CUDA_ERROR_LAUNCH_FAILED:
        case CUDA_ERROR_TENSOR_MEMORY_LEAK: return true;
        default: return false;
    }
}

}  // namespace gpupool::client
