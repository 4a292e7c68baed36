#include "server/worker/scheduling/kernel_launch.h"

#include "common/log.h"

namespace gpupool::worker {

CUlaunchConfig config_of(const LaunchShape& shape, std::vector<CUlaunchAttribute>& attributes, CUstream stream) {
    CUlaunchConfig config{};
    config.gridDimX = shape.grid_x;
    config.gridDimY = shape.grid_y;
    config.gridDimZ = shape.grid_z;
    config.blockDimX = shape.block_x;
    config.blockDimY = shape.block_y;
    config.blockDimZ = shape.block_z;
    config.sharedMemBytes = shape.shared_bytes;
    config.hStream = stream;
    config.attrs = attributes.data();
    config.numAttrs = static_cast<unsigned>(attributes.size());
    return config;
}

CUresult KernelLaunch::issue(const driver::Api& api) {
    std::size_t argument_bytes = arguments.size();
    void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, arguments.data(), CU_LAUNCH_PARAM_BUFFER_SIZE, &argument_bytes,
                     CU_LAUNCH_PARAM_END};
    void** const given = argument_bytes == 0 ? nullptr : extra;
    if (shape.cooperative != 0) {
        CUlaunchAttribute cooperative{};
        cooperative.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
        cooperative.value.cooperative = 1;
        attributes.push_back(cooperative);
    }
    if (shape.extended != 0 || shape.cooperative != 0) {
        const CUlaunchConfig config = config_of(shape, attributes, stream);
        return driver::call(api.cuLaunchKernelEx, &config, function, static_cast<void**>(nullptr), given);
    }
    return driver::call(api.cuLaunchKernel, function, shape.grid_x, shape.grid_y, shape.grid_z, shape.block_x,
                        shape.block_y, shape.block_z, shape.shared_bytes, stream, static_cast<void**>(nullptr), given);
}

void note_failure(const driver::Api& api, const KernelLaunch& launch, CUresult result) {
    const char* name = nullptr;
    driver::call(api.cuFuncGetName, &name, launch.function);
    const LaunchShape& shape = launch.shape;
    log::info(
        "launch of {} failed with error {}: grid {}x{}x{}, block {}x{}x{}, {} bytes shared, {} of arguments, {} "
        "attributes",
        name == nullptr ? "a function" : name, static_cast<int>(result), shape.grid_x, shape.grid_y, shape.grid_z,
        shape.block_x, shape.block_y, shape.block_z, shape.shared_bytes, launch.arguments.size(),
        launch.attributes.size());
}

}  // namespace gpupool::worker
