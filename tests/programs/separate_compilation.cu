// Separate compilation: kernels that call functions and read variables of another unit (nvcc -rdc=true).
#include <cooperative_groups.h>

#include <vector>

#include "tests/programs/runtime.h"
#include "tests/programs/separate_compilation.h"

using namespace gpupool::programs;

static __device__ int own = 7;

__global__ void use_other_unit(int* values, int count) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) {
        values[i] = weighted(i) + weights[3] + own;
    }
}

__global__ void step_of_other_unit(int* values) {
    values[threadIdx.x] = chosen_step(static_cast<int>(threadIdx.x));
}

// A cooperative launch of linked code.
__global__ void sum_after_barrier(const int* values, int* partial, int* sum) {
    partial[blockIdx.x] = values[blockIdx.x];
    cooperative_groups::this_grid().sync();
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        for (unsigned i = 0; i < gridDim.x; i++) {
            *sum += partial[i];
        }
    }
}

int main() {
    limit_seconds(120);
    constexpr int kCount = 96;
    int* values = nullptr;
    CUDA_OK(cudaMalloc(&values, kCount * sizeof(int)));
    use_other_unit<<<3, 32>>>(values, kCount);
    CUDA_OK(cudaGetLastError());
    std::vector<int> result(kCount, -1);
    CUDA_OK(cudaMemcpy(result.data(), values, kCount * sizeof(int), cudaMemcpyDeviceToHost));
    const int expected_weights[4] = {1, 10, 100, 1000};
    int wrong = 0, sum = 0;
    for (int i = 0; i < kCount; i++) {
        wrong += result[i] != expected_weights[i % 4] * i + 1000 + 1000 + 7;
        sum += result[i];
    }
    check(wrong == 0, "function and constants of another unit: %d of %d values differ", wrong, kCount);

    launch_add_totals(values, kCount);
    Totals seen{};
    CUDA_OK(cudaMemcpyFromSymbol(&seen, totals, sizeof seen));
    check(seen.calls == kCount, "variable of another unit counts %d calls, expected %d", seen.calls, kCount);
    check(seen.sum == sum, "kernel of another unit sums to %d, expected %d", seen.sum, sum);

    const int new_weights[4] = {2, 2, 2, 2};
    CUDA_OK(cudaMemcpyToSymbol(weights, new_weights, sizeof new_weights));
    use_other_unit<<<3, 32>>>(values, kCount);
    int third = 0;
    CUDA_OK(cudaMemcpy(&third, values + 3, sizeof third, cudaMemcpyDeviceToHost));
    check(third == 2 * 3 + 1000 + 2 + 7, "after constants were set: %d, expected %d", third, 2 * 3 + 1000 + 2 + 7);

    step_of_other_unit<<<1, 32>>>(values);
    int fifth = 0;
    CUDA_OK(cudaMemcpy(&fifth, values + 5, sizeof fifth, cudaMemcpyDeviceToHost));
    check(fifth == 1010, "pointer to a function of another unit gives %d, expected %d", fifth, 1010);

    int *partial = nullptr, *total = nullptr;
    CUDA_OK(cudaMalloc(&partial, 4 * sizeof(int)));
    CUDA_OK(cudaMalloc(&total, sizeof(int)));
    CUDA_OK(cudaMemset(total, 0, sizeof(int)));
    void* arguments[] = {&values, &partial, &total};
    CUDA_OK(cudaLaunchCooperativeKernel(reinterpret_cast<void*>(sum_after_barrier), dim3(4), dim3(32), arguments, 0,
                                        nullptr));
    int grid_sum = -1;
    CUDA_OK(cudaMemcpy(&grid_sum, total, sizeof grid_sum, cudaMemcpyDeviceToHost));
    check(grid_sum == 1000 + 1002 + 1004 + 1006, "sum behind a grid barrier: %d, expected %d", grid_sum, 4012);
    CUDA_OK(cudaFree(values));
    CUDA_OK(cudaFree(partial));
    CUDA_OK(cudaFree(total));
    return finish("separate_compilation");
}
