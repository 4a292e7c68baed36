// Launch configurations and their checks, shared by launches, kernel nodes and the occupancy calculator.
//
// Ownership: none.
// Threads: any.
// Errors: the driver's.
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

// 0 if the device does not have the attribute.
int device_attribute(const Device& device, CUdevice_attribute id);
// What the driver would return for a launch of `function`, whose attributes are loaded, on that device.
CUresult check_limits(const Device& device, const FunctionAttributes::OnDevice& function, const LaunchShape& launch);

// The function of a kernel node, or its kernel, cast to one.
inline CUfunction function_in(const CUDA_KERNEL_NODE_PARAMS_v3& p) {
    return p.func != nullptr ? p.func : reinterpret_cast<CUfunction>(p.kern);
}

}  // namespace gpupool::client
