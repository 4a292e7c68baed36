// Stands in for the entry point that client/calls/private_view.cpp calls: it belongs to libcuda.so.1 itself, which
// these tests do not link.
#include <cuda.h>

extern "C" CUresult cuModuleLoadData(CUmodule*, const void*) {
    return CUDA_ERROR_NOT_SUPPORTED;
}
