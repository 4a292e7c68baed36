// Sum, maximum and a vote over many numbers with warp shuffles, shared memory and one atomic per block. Argument:
// number of elements.
#include <climits>
#include <vector>

#include "tests/programs/runtime.h"

using namespace gpupool::programs;

constexpr unsigned kWholeWarp = 0xffffffffu;
constexpr int kBlockThreads = 256;

__device__ int warp_sum(int value) {
    for (int offset = 16; offset > 0; offset /= 2) {
        value += __shfl_down_sync(kWholeWarp, value, offset);
    }
    return value;
}

__device__ int warp_maximum(int value) {
    for (int offset = 16; offset > 0; offset /= 2) {
        value = max(value, __shfl_xor_sync(kWholeWarp, value, offset));
    }
    return value;
}

struct Totals {
    int sum;
    int maximum;
    int odd;
};

__global__ void reduce(const int* input, int count, Totals* totals) {
    __shared__ int sums[kBlockThreads / 32];
    __shared__ int maxima[kBlockThreads / 32];
    int sum = 0;
    int maximum = INT_MIN;
    int odd = 0;
    // Every lane executes every round, so that the vote below has whole warps.
    const int stride = gridDim.x * blockDim.x;
    const int rounds = (count + stride - 1) / stride;
    for (int round = 0; round < rounds; round++) {
        const int i = round * stride + blockIdx.x * blockDim.x + threadIdx.x;
        const int value = i < count ? input[i] : 0;
        if (i < count) {
            sum += value;
            maximum = max(maximum, value);
        }
        odd += __popc(__ballot_sync(kWholeWarp, i < count && value % 2 != 0));
    }
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    sum = warp_sum(sum);
    maximum = warp_maximum(maximum);
    if (lane == 0) {
        sums[warp] = sum;
        maxima[warp] = maximum;
        atomicAdd(&totals->odd, odd);
    }
    __syncthreads();
    if (warp == 0) {
        sum = warp_sum(lane < kBlockThreads / 32 ? sums[lane] : 0);
        maximum = warp_maximum(lane < kBlockThreads / 32 ? maxima[lane] : INT_MIN);
        if (lane == 0) {
            atomicAdd(&totals->sum, sum);
            atomicMax(&totals->maximum, maximum);
        }
    }
}

int main(int argc, char** argv) {
    limit_seconds(120);
    const int count = static_cast<int>(number_argument(argc, argv, 1, 40'001));
    std::vector<int> input(count);
    Totals expected{0, INT_MIN, 0};
    unsigned state = 12345;
    for (int i = 0; i < count; i++) {
        state = state * 1664525u + 1013904223u;
        input[i] = static_cast<int>(state >> 16) % 2001 - 1000;
        expected.sum += input[i];
        expected.maximum = input[i] > expected.maximum ? input[i] : expected.maximum;
        expected.odd += input[i] % 2 != 0;
    }
    int* device_input = nullptr;
    Totals* device_totals = nullptr;
    CUDA_OK(cudaMalloc(&device_input, count * sizeof(int)));
    CUDA_OK(cudaMalloc(&device_totals, sizeof(Totals)));
    CUDA_OK(cudaMemcpy(device_input, input.data(), count * sizeof(int), cudaMemcpyHostToDevice));
    const Totals nothing{0, INT_MIN, 0};
    CUDA_OK(cudaMemcpy(device_totals, &nothing, sizeof nothing, cudaMemcpyHostToDevice));
    reduce<<<16, kBlockThreads>>>(device_input, count, device_totals);
    CUDA_OK(cudaGetLastError());
    Totals totals{};
    CUDA_OK(cudaMemcpy(&totals, device_totals, sizeof totals, cudaMemcpyDeviceToHost));
    check(totals.sum == expected.sum, "sum: %d, expected %d", totals.sum, expected.sum);
    check(totals.maximum == expected.maximum, "maximum: %d, expected %d", totals.maximum, expected.maximum);
    check(totals.odd == expected.odd, "odd numbers by ballot: %d, expected %d", totals.odd, expected.odd);
    CUDA_OK(cudaFree(device_input));
    CUDA_OK(cudaFree(device_totals));
    return finish("reduction");
}
