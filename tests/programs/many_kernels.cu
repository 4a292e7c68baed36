// Many kernels in several translation units, most of them never used. Images and kernels are loaded when first needed.
#include <utility>

#include "tests/programs/many_kernels.h"
#include "tests/programs/runtime.h"

using namespace gpupool::programs;

template <int number>
__global__ void add_number(int* sum) {
    *sum += number * number;
}

// Never launched. Its presence must not matter, whatever it contains.
__global__ void never_used(double* data, int count) {
    __shared__ double parts[512];
    parts[threadIdx.x] = sin(data[threadIdx.x]) * exp(data[count]);
    __syncthreads();
    data[threadIdx.x] = parts[511 - threadIdx.x];
}

// A signature with parameters of every alignment.
struct Odd {
    char bytes[3];
};
__global__ void mixed_parameters(char a, long long b, short c, Odd d, double e, int* out) {
    *out = a + static_cast<int>(b) + c + d.bytes[0] + d.bytes[1] + d.bytes[2] + static_cast<int>(e);
}

template <int... numbers>
int launch_all(int* sum, std::integer_sequence<int, numbers...>) {
    (add_number<numbers><<<1, 1>>>(sum), ...);
    CUDA_OK(cudaGetLastError());
    return ((numbers * numbers) + ...);
}

int main() {
    limit_seconds(120);
    constexpr int kCount = 100;
    int* data = nullptr;
    CUDA_OK(cudaMalloc(&data, kCount * sizeof(int)));
    CUDA_OK(cudaMemset(data, 0, kCount * sizeof(int)));

    const int expected = launch_all(data, std::make_integer_sequence<int, 64>());
    int seen = -1;
    CUDA_OK(cudaMemcpy(&seen, data, sizeof seen, cudaMemcpyDeviceToHost));
    check(seen == expected, "64 kernels of one template: %d, expected %d", seen, expected);

    CUDA_OK(cudaMemset(data, 0, kCount * sizeof(int)));
    run_first_unit(data, kCount);
    run_second_unit(data, kCount);
    run_first_unit(data, kCount);
    int all[kCount];
    CUDA_OK(cudaMemcpy(all, data, sizeof all, cudaMemcpyDeviceToHost));
    int wrong = 0;
    for (int value : all) {
        wrong += value != 40;
    }
    check(wrong == 0, "kernels of the same name in two units: %d elements differ", wrong);
    check(first_unit_calls() == 2 && second_unit_calls() == 1, "variables of the same name in two units");

    mixed_parameters<<<1, 1>>>(1, 20, 300, Odd{{4, 5, 6}}, 7000.0, data);
    CUDA_OK(cudaGetLastError());
    CUDA_OK(cudaMemcpy(&seen, data, sizeof seen, cudaMemcpyDeviceToHost));
    check(seen == 7336, "parameters of many alignments: %d", seen);

    cudaFuncAttributes attributes;
    CUDA_OK(cudaFuncGetAttributes(&attributes, never_used));
    check(attributes.sharedSizeBytes == 512 * sizeof(double), "attributes of a kernel that never ran: %zu bytes shared",
          attributes.sharedSizeBytes);
    int blocks = 0;
    CUDA_OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, mixed_parameters, 128, 0));
    check(blocks >= 1, "occupancy: %d blocks", blocks);
    CUDA_OK(cudaFree(data));
    return finish("many_kernels");
}
