// The launch API from before CUDA 4: the program sets state on the function, then launches it.
#include <algorithm>
#include <cstring>

#include "server/softgpu/api/functions.h"

namespace gpupool::softgpu {
namespace {

constexpr std::size_t kMaxArgumentBytes = 32764;  // the most that a kernel's parameters may take

constexpr std::int64_t kMaxBlockThreads = 1024;

template <class Change>
CUresult change(CUfunction handle, Change change) {
    SOFTGPU_READY();
    std::shared_ptr<Function> function;
    if (const CUresult error = find_function(handle, function); error != CUDA_SUCCESS) {
        return error;
    }
    const Lock lock(function->mutex);
    return change(function->legacy);
}

CUresult set_argument(CUfunction handle, int offset, const void* value, std::size_t bytes) {
    return change(handle, [&](LegacyLaunch& legacy) {
        if (value == nullptr || offset < 0 || static_cast<std::size_t>(offset) > kMaxArgumentBytes ||
            bytes > kMaxArgumentBytes - static_cast<std::size_t>(offset)) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        const std::size_t end = static_cast<std::size_t>(offset) + bytes;
        legacy.arguments.resize(std::max(legacy.arguments.size(), end));
        std::memcpy(legacy.arguments.data() + offset, value, bytes);
        return CUDA_SUCCESS;
    });
}

CUresult launch(CUfunction handle, int width, int height, CUstream stream) {
    LegacyLaunch legacy;
    const CUresult found = change(handle, [&](const LegacyLaunch& kept) {
        legacy = kept;
        return CUDA_SUCCESS;
    });
    if (found != CUDA_SUCCESS || width <= 0 || height <= 0) {
        return found != CUDA_SUCCESS ? found : CUDA_ERROR_INVALID_VALUE;
    }
    std::size_t bytes = std::max(legacy.argument_bytes, legacy.arguments.size());
    legacy.arguments.resize(bytes);
    void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, legacy.arguments.data(), CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                     CU_LAUNCH_PARAM_END};
    return cuLaunchKernel(handle, static_cast<unsigned>(width), static_cast<unsigned>(height), 1, legacy.block[0],
                          legacy.block[1], legacy.block[2], legacy.shared_bytes, stream, nullptr,
                          bytes == 0 ? nullptr : extra);
}

}  // namespace
}  // namespace gpupool::softgpu

using namespace gpupool::softgpu;

extern "C" {

CUresult CUDAAPI cuFuncSetBlockShape(CUfunction function, int x, int y, int z) {
    return change(function, [&](LegacyLaunch& legacy) {
        if (x <= 0 || y <= 0 || z <= 0 || std::int64_t{x} * y * z > kMaxBlockThreads) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        legacy.block[0] = static_cast<unsigned>(x);
        legacy.block[1] = static_cast<unsigned>(y);
        legacy.block[2] = static_cast<unsigned>(z);
        return CUDA_SUCCESS;
    });
}

CUresult CUDAAPI cuFuncSetSharedSize(CUfunction function, unsigned bytes) {
    return change(function, [&](LegacyLaunch& legacy) {
        if (bytes > static_cast<unsigned>(kMaxSharedBytes)) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        legacy.shared_bytes = bytes;
        return CUDA_SUCCESS;
    });
}

CUresult CUDAAPI cuParamSetSize(CUfunction function, unsigned bytes) {
    return change(function, [&](LegacyLaunch& legacy) {
        if (bytes > kMaxArgumentBytes) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        legacy.argument_bytes = bytes;
        return CUDA_SUCCESS;
    });
}

CUresult CUDAAPI cuParamSeti(CUfunction function, int offset, unsigned value) {
    return set_argument(function, offset, &value, sizeof value);
}

CUresult CUDAAPI cuParamSetf(CUfunction function, int offset, float value) {
    return set_argument(function, offset, &value, sizeof value);
}

CUresult CUDAAPI cuParamSetv(CUfunction function, int offset, void* value, unsigned bytes) {
    return set_argument(function, offset, value, bytes);
}

CUresult CUDAAPI cuLaunch(CUfunction function) {
    return launch(function, 1, 1, nullptr);
}

CUresult CUDAAPI cuLaunchGrid(CUfunction function, int width, int height) {
    return launch(function, width, height, nullptr);
}

CUresult CUDAAPI cuLaunchGridAsync(CUfunction function, int width, int height, CUstream stream) {
    return launch(function, width, height, stream);
}

}  // extern "C"
