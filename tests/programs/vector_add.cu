// c = a + b: the smallest complete CUDA program. Argument: number of elements.
#include <vector>

#include "tests/programs/runtime.h"

using namespace gpupool::programs;

__global__ void vector_add(const float* a, const float* b, float* c, int count) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) {
        c[i] = a[i] + b[i];
    }
}

int main(int argc, char** argv) {
    limit_seconds(120);
    const int count = static_cast<int>(number_argument(argc, argv, 1, 50'000));
    const size_t bytes = count * sizeof(float);
    std::vector<float> a(count), b(count), c(count, -1.0f);
    for (int i = 0; i < count; i++) {
        a[i] = static_cast<float>(i % 1000);
        b[i] = static_cast<float>(2 * (i % 777));
    }
    float *device_a = nullptr, *device_b = nullptr, *device_c = nullptr;
    CUDA_OK(cudaMalloc(&device_a, bytes));
    CUDA_OK(cudaMalloc(&device_b, bytes));
    CUDA_OK(cudaMalloc(&device_c, bytes));
    CUDA_OK(cudaMemcpy(device_a, a.data(), bytes, cudaMemcpyHostToDevice));
    CUDA_OK(cudaMemcpy(device_b, b.data(), bytes, cudaMemcpyHostToDevice));
    const int threads = 256;
    vector_add<<<(count + threads - 1) / threads, threads>>>(device_a, device_b, device_c, count);
    CUDA_OK(cudaGetLastError());
    CUDA_OK(cudaMemcpy(c.data(), device_c, bytes, cudaMemcpyDeviceToHost));
    int wrong = 0;
    for (int i = 0; i < count; i++) {
        wrong += c[i] != a[i] + b[i];
    }
    check(wrong == 0, "vector add: %d of %d sums differ", wrong, count);
    CUDA_OK(cudaFree(device_a));
    CUDA_OK(cudaFree(device_b));
    CUDA_OK(cudaFree(device_c));
    return finish("vector_add");
}
