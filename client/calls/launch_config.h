// What a launch is asked for, as launches, kernels' nodes and the occupancy calculator take it.
#pragma once

#include "client/core/images/function_attributes.h"
#include "client/core/session/devices.h"
#include "protocol/calls/internal.h"

namespace gpupool::client {

inline LaunchShape shape_of(const CUlaunchConfig& config, CUfunction function) {
    return {function,
            config.gridDimX,
            config.gridDimY,
            config.gridDimZ,
            config.blockDimX,
            config.blockDimY,
            config.blockDimZ,
            config.sharedMemBytes,
            0,
            1};
}

inline CUresult check_attributes(const CUlaunchConfig& config) {
    constexpr unsigned kMaxAttributes = 64;
    if (config.numAttrs > kMaxAttributes || (config.numAttrs != 0 && config.attrs == nullptr)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

// 0 where the device has none.
int device_attribute(const Device& device, CUdevice_attribute id);
// The native verdict on a launch of `function`, of which everything is known, on that device.
CUresult check_limits(const Device& device, const FunctionAttributes::OnDevice& function, const LaunchShape& launch);

// A kernel's node's function, or its kernel as one.
inline CUfunction function_in(const CUDA_KERNEL_NODE_PARAMS_v3& p) {
    return p.func != nullptr ? p.func : reinterpret_cast<CUfunction>(p.kern);
}

}  // namespace gpupool::client
