// The process's libcuda.so.1: NVIDIA's natively, gpupool's under `gpupool run`.
//
// Errors: driver() and ok() end the program, since benchmarks of failing calls are meaningless.
#pragma once

#include <cuda.h>

namespace gpupool::benchmarks {

#define GP_DRIVER_FUNCTIONS(f)                                                                                      \
    f(cuInit) f(cuDeviceGet) f(cuDevicePrimaryCtxRetain) f(cuCtxSetCurrent) f(cuCtxGetCurrent) f(cuMemGetInfo_v2)   \
        f(cuCtxSynchronize) f(cuStreamCreate) f(cuStreamSynchronize) f(cuStreamQuery) f(cuEventCreate)              \
            f(cuEventRecord) f(cuEventQuery) f(cuEventSynchronize) f(cuModuleLoadData) f(cuModuleGetFunction)       \
                f(cuLaunchKernel) f(cuMemAlloc_v2) f(cuMemFree_v2) f(cuMemAllocAsync) f(cuMemFreeAsync)             \
                    f(cuMemAllocHost_v2) f(cuMemFreeHost) f(cuMemHostRegister_v2) f(cuMemHostUnregister)            \
                        f(cuMemcpyHtoD_v2) f(cuMemcpyDtoH_v2) f(cuMemcpyHtoDAsync_v2) f(cuMemcpyDtoHAsync_v2)       \
                            f(cuStreamBeginCapture_v2) f(cuStreamEndCapture) f(cuGraphInstantiateWithFlags)         \
                                f(cuGraphLaunch) f(cuGraphDestroy) f(cuGraphExecDestroy) f(cuStreamWriteValue32_v2) \
                                    f(cuStreamWaitValue32_v2) f(cuStreamDestroy_v2)

struct Driver {
#define GP_MEMBER(name) decltype(&::name) name = nullptr;
    GP_DRIVER_FUNCTIONS(GP_MEMBER)
#undef GP_MEMBER
    CUstream stream = nullptr;
    CUevent event = nullptr;
    CUfunction nothing = nullptr;  // an empty kernel
    CUdeviceptr memory = 0;        // kMemoryBytes of device memory
};
inline constexpr std::size_t kMemoryBytes = 256u << 20;

// Initialises device 0 and makes its primary context current, once.
const Driver& driver();
// Launches the empty kernel in the stream.
CUresult launch(const Driver& driver);
// The same with packed arguments, as a worker launches.
CUresult launch_packed(const Driver& driver);
void ok(CUresult result, const char* what);

}  // namespace gpupool::benchmarks
