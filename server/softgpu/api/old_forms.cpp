// Entry points that later versions replaced and that the driver still exports: first forms of calls, the use count of
// contexts, and cooperative launches on several devices. legacy.cpp has the launches of before CUDA 4.
#include <vector>

#include "server/softgpu/api/objects.h"

using namespace gpupool::softgpu;

extern "C" {

CUresult CUDAAPI cuCtxCreate(CUcontext* result, unsigned flags, CUdevice device) {
    return cuCtxCreate_v2(result, flags, device);
}
CUresult CUDAAPI cuCtxDestroy(CUcontext handle) {
    return cuCtxDestroy_v2(handle);
}
CUresult CUDAAPI cuCtxPushCurrent(CUcontext handle) {
    return cuCtxPushCurrent_v2(handle);
}
CUresult CUDAAPI cuCtxPopCurrent(CUcontext* handle) {
    return cuCtxPopCurrent_v2(handle);
}

CUresult CUDAAPI cuCtxAttach(CUcontext* handle, unsigned flags) {
    SOFTGPU_CONTEXT(context);
    if (handle == nullptr || flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    ++context->attached;
    *handle = reinterpret_cast<CUcontext>(context.get());
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxDetach(CUcontext handle) {
    SOFTGPU_READY();
    const auto context = state().contexts.find(handle);
    if (context == nullptr || context_stack().empty() || context_stack().back() != handle) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    return --context->attached == 0 && !context->primary ? cuCtxDestroy_v2(handle) : CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamDestroy(CUstream stream) {
    return cuStreamDestroy_v2(stream);
}
CUresult CUDAAPI cuEventDestroy(CUevent event) {
    return cuEventDestroy_v2(event);
}
CUresult CUDAAPI cuMemHostRegister(void* pointer, size_t bytes, unsigned flags) {
    return cuMemHostRegister_v2(pointer, bytes, flags);
}

// Launches on several devices do not wait for each other here.
CUresult CUDAAPI cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS* list, unsigned count, unsigned flags) {
    SOFTGPU_READY();
    int devices = 0;
    cuDeviceGetCount(&devices);
    if (list == nullptr || flags > 3 || count == 0 || count > static_cast<unsigned>(devices)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    std::vector<CUcontext> contexts(count);
    for (unsigned i = 0; i < count; ++i) {
        if (list[i].function == nullptr || reinterpret_cast<std::uintptr_t>(list[i].hStream) <= 2) {
            return CUDA_ERROR_INVALID_HANDLE;
        }
        if (const CUresult error = cuStreamGetCtx(list[i].hStream, &contexts[i]); error != CUDA_SUCCESS) {
            return error;
        }
        CUstreamCaptureStatus status{};
        cuStreamIsCapturing(list[i].hStream, &status);
        if (status != CU_STREAM_CAPTURE_STATUS_NONE) {
            return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
        for (unsigned k = 0; k < i; ++k) {
            CUdevice one = -1, other = -1;
            cuCtxGetDevice_v2(&one, contexts[i]);
            cuCtxGetDevice_v2(&other, contexts[k]);
            if (one == other) {
                return CUDA_ERROR_INVALID_DEVICE;
            }
        }
    }
    for (unsigned i = 0; i < count; ++i) {
        const CUDA_LAUNCH_PARAMS& p = list[i];
        context_stack().push_back(contexts[i]);
        const CUresult result =
            cuLaunchCooperativeKernel(p.function, p.gridDimX, p.gridDimY, p.gridDimZ, p.blockDimX, p.blockDimY,
                                      p.blockDimZ, p.sharedMemBytes, p.hStream, p.kernelParams);
        context_stack().pop_back();
        if (result != CUDA_SUCCESS) {
            return result;
        }
    }
    return CUDA_SUCCESS;
}

}  // extern "C"
