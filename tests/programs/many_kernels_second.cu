// The second unit of many_kernels: see many_kernels.h.
#include "tests/programs/many_kernels.h"
#include "tests/programs/runtime.h"

namespace {

__device__ int calls = 0;

__global__ void step(int* data, int count) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) {
        data[i] = data[i] * 3;
    }
    if (i == 0) {
        calls += 1;
    }
}

}  // namespace

namespace gpupool::programs {

void run_second_unit(int* data, int count) {
    step<<<(count + 63) / 64, 64>>>(data, count);
    CUDA_OK(cudaGetLastError());
}

int second_unit_calls() {
    int value = -1;
    CUDA_OK(cudaMemcpyFromSymbol(&value, calls, sizeof value));
    return value;
}

}  // namespace gpupool::programs
