#include "server/worker/scheduling/kernel_launch.h"

#include "common/log.h"
#include "protocol/codec/handles.h"

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

bool find_arguments(const driver::Api& api, CUfunction function, bool is_kernel, std::span<unsigned char> packed,
                    std::vector<void*>& addresses) {
    for (std::size_t i = 0;; ++i) {
        std::size_t offset = 0, bytes = 0;
        const CUresult known =
            is_kernel ? driver::call(api.cuKernelGetParamInfo, reinterpret_cast<CUkernel>(function), i, &offset, &bytes)
                      : driver::call(api.cuFuncGetParamInfo, function, i, &offset, &bytes);
        if (known != CUDA_SUCCESS) {
            return known == CUDA_ERROR_INVALID_VALUE;  // there are no more
        }
        if (offset > packed.size() || bytes > packed.size() - offset) {
            return false;
        }
        addresses.push_back(packed.data() + offset);
    }
}

CUresult KernelLaunch::issue(const driver::WorkPermit& permit, const driver::Api& api) {
    std::size_t argument_bytes = arguments.size();
    void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, arguments.data(), CU_LAUNCH_PARAM_BUFFER_SIZE, &argument_bytes,
                     CU_LAUNCH_PARAM_END};
    void** given = argument_bytes == 0 ? nullptr : extra;
    void** separate = nullptr;
    std::vector<void*> addresses;
    // The driver captures no cooperative launch whose arguments are packed, and makes no cooperative node of another.
    if (captured && given != nullptr && find_arguments(api, function, is_kernel(), arguments, addresses)) {
        separate = addresses.data();
        given = nullptr;
    }
    if (shape.cooperative != 0) {
        CUlaunchAttribute cooperative{};
        cooperative.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
        cooperative.value.cooperative = 1;
        attributes.push_back(cooperative);
    }
    if (shape.extended != 0 || shape.cooperative != 0) {
        const CUlaunchConfig config = config_of(shape, attributes, stream);
        return driver::call(permit, api.cuLaunchKernelEx, &config, function, separate, given);
    }
    return driver::call(permit, api.cuLaunchKernel, function, shape.grid_x, shape.grid_y, shape.grid_z, shape.block_x,
                        shape.block_y, shape.block_z, shape.shared_bytes, stream, separate, given);
}

void note_failure(const driver::Api& api, const KernelLaunch& launch, CUresult result) {
    const char* name = nullptr;
    if (launch.is_kernel()) {
        driver::call(api.cuKernelGetName, &name, reinterpret_cast<CUkernel>(launch.function));
    } else {
        driver::call(api.cuFuncGetName, &name, launch.function);
    }
    const LaunchShape& shape = launch.shape;
    log::info(
        "launch of {} failed with error {}: grid {}x{}x{}, block {}x{}x{}, {} bytes shared, {} of arguments, {} "
        "attributes",
        name == nullptr ? "a function" : name, static_cast<int>(result), shape.grid_x, shape.grid_y, shape.grid_z,
        shape.block_x, shape.block_y, shape.block_z, shape.shared_bytes, launch.arguments.size(),
        launch.attributes.size());
}

}  // namespace gpupool::worker
