#include "client/calls/launch_config.h"

namespace gpupool::client {
namespace {

// Checks the device's limits, which hold for all functions.
CUresult check_device(const Device& device, const LaunchShape& launch) {
    const auto limit = [&](CUdevice_attribute id) { return static_cast<unsigned>(device_attribute(device, id)); };
    const bool empty = launch.grid_x == 0 || launch.grid_y == 0 || launch.grid_z == 0 || launch.block_x == 0 ||
                       launch.block_y == 0 || launch.block_z == 0;
    if (empty || launch.grid_x > limit(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X) ||
        launch.grid_y > limit(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y) ||
        launch.grid_z > limit(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z) ||
        launch.block_x > limit(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X) ||
        launch.block_y > limit(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y) ||
        launch.block_z > limit(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const std::uint64_t threads = std::uint64_t{launch.block_x} * launch.block_y * launch.block_z;
    if (threads > limit(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK) ||
        launch.shared_bytes > limit(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

// Checks the function's limits of threads and shared memory.
CUresult check_function(const FunctionAttributes::OnDevice& function, const LaunchShape& launch) {
    const int max_threads = function.get(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
    const int max_dynamic = function.get(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
    const std::uint64_t threads = std::uint64_t{launch.block_x} * launch.block_y * launch.block_z;
    if (threads > static_cast<std::uint64_t>(max_threads) || launch.shared_bytes > static_cast<unsigned>(max_dynamic)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

}  // namespace

int device_attribute(const Device& device, CUdevice_attribute id) {
    int value = 0;
    device.attributes.get(id, &value);
    return value;
}

CUresult check_limits(const Device& device, const FunctionAttributes::OnDevice& function, const LaunchShape& launch) {
    const CUresult result = check_device(device, launch);
    return result != CUDA_SUCCESS ? result : check_function(function, launch);
}

}  // namespace gpupool::client
