// y = a x + y, three times over with a grid-stride loop. Argument: number of elements.
#include <vector>

#include "tests/programs/runtime.h"

using namespace gpupool::programs;

__global__ void saxpy(int count, float a, const float* x, float* y) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
        y[i] = a * x[i] + y[i];
    }
}

int main(int argc, char** argv) {
    limit_seconds(120);
    const int count = static_cast<int>(number_argument(argc, argv, 1, 30'000));
    const size_t bytes = count * sizeof(float);
    std::vector<float> x(count), y(count), result(count);
    for (int i = 0; i < count; i++) {
        x[i] = static_cast<float>(i % 512);
        y[i] = static_cast<float>(i % 300);
    }
    float *device_x = nullptr, *device_y = nullptr;
    CUDA_OK(cudaMalloc(&device_x, bytes));
    CUDA_OK(cudaMalloc(&device_y, bytes));
    CUDA_OK(cudaMemcpy(device_x, x.data(), bytes, cudaMemcpyHostToDevice));
    CUDA_OK(cudaMemcpy(device_y, y.data(), bytes, cudaMemcpyHostToDevice));
    const float factors[] = {2.0f, -0.5f, 4.0f};  // powers of two: exact with or without a fused multiply-add
    for (float factor : factors) {
        saxpy<<<32, 128>>>(count, factor, device_x, device_y);
        CUDA_OK(cudaGetLastError());
    }
    CUDA_OK(cudaDeviceSynchronize());
    CUDA_OK(cudaMemcpy(result.data(), device_y, bytes, cudaMemcpyDeviceToHost));
    int wrong = 0;
    for (int i = 0; i < count; i++) {
        float expected = y[i];
        for (float factor : factors) {
            expected += factor * x[i];
        }
        wrong += result[i] != expected;
    }
    check(wrong == 0, "saxpy: %d of %d elements differ", wrong, count);
    CUDA_OK(cudaFree(device_x));
    CUDA_OK(cudaFree(device_y));
    return finish("saxpy");
}
