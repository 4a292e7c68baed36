// The entry point that client/calls/private_view.cpp calls. It belongs to libcuda.so.1 itself, which is not part of these
// tests.
#include <cuda.h>

extern "C" CUresult cuModuleLoadData(CUmodule*, const void*) {
    return CUDA_ERROR_NOT_SUPPORTED;
}
