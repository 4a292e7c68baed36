// The environment variables of the CUDA driver that a client may pass on to its server's driver.
//
// Other driver variables make the driver load a library (CUDA_INJECTION64_PATH) or write files (CUDA_COREDUMP_FILE,
// CUDA_CACHE_PATH, CUDA_MPS_PIPE_DIRECTORY): a tenant must not set them on the server. The client itself honours
// CUDA_LAUNCH_BLOCKING: a worker's launches must never block its dispatcher.
#pragma once

#include <algorithm>
#include <array>
#include <string_view>

namespace gpupool {

inline constexpr std::array<const char*, 11> kDriverVariables{
    "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_DEVICE_MAX_COPY_CONNECTIONS",
    "CUDA_DEVICE_ORDER",           "CUDA_DISABLE_JIT",
    "CUDA_DISABLE_PTX_JIT",        "CUDA_FORCE_JIT",
    "CUDA_FORCE_PTX_JIT",          "CUDA_MODULE_DATA_LOADING",
    "CUDA_MODULE_LOADING",         "CUDA_SCALE_LAUNCH_QUEUES",
    "CUDA_VISIBLE_DEVICES",
};

inline bool is_driver_variable(std::string_view name) {
    return std::find(kDriverVariables.begin(), kDriverVariables.end(), name) != kDriverVariables.end();
}

}  // namespace gpupool
