// A CUlaunchConfig as launches and the occupancy calculator take it.
#pragma once

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

}  // namespace gpupool::client
