// The second unit of separate_compilation. Its `own` is a different variable from the first one's.
#include "tests/programs/runtime.h"
#include "tests/programs/separate_compilation.h"

static __device__ int own = 1000;

static __device__ __noinline__ int twice(int value) {
    return 2 * value + own;
}

__device__ Totals totals;
__constant__ int weights[4] = {1, 10, 100, 1000};
__device__ Step chosen_step = twice;

__device__ int weighted(int index) {
    atomicAdd(&totals.calls, 1);
    return weights[index % 4] * index + own;
}

static __global__ void add_totals(const int* values, int count) {
    for (int i = 0; i < count; i++) {
        totals.sum += values[i];
    }
}

void launch_add_totals(const int* values, int count) {
    add_totals<<<1, 1>>>(values, count);
    CUDA_OK(cudaGetLastError());
}
