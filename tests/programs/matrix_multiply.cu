// C = A B with tiles in shared memory, static and dynamic, square and odd sizes. Argument: size of the larger product.
#include <vector>

#include "tests/programs/runtime.h"

using namespace gpupool::programs;

constexpr int kTile = 16;

__global__ void multiply_static(const float* a, const float* b, float* c, int m, int n, int k) {
    __shared__ float tile_a[kTile][kTile];
    __shared__ float tile_b[kTile][kTile];
    const int row = blockIdx.y * kTile + threadIdx.y;
    const int column = blockIdx.x * kTile + threadIdx.x;
    float sum = 0.0f;
    for (int start = 0; start < k; start += kTile) {
        const int a_column = start + threadIdx.x;
        const int b_row = start + threadIdx.y;
        tile_a[threadIdx.y][threadIdx.x] = row < m && a_column < k ? a[row * k + a_column] : 0.0f;
        tile_b[threadIdx.y][threadIdx.x] = b_row < k && column < n ? b[b_row * n + column] : 0.0f;
        __syncthreads();
        for (int i = 0; i < kTile; i++) {
            sum += tile_a[threadIdx.y][i] * tile_b[i][threadIdx.x];
        }
        __syncthreads();
    }
    if (row < m && column < n) {
        c[row * n + column] = sum;
    }
}

__global__ void multiply_dynamic(const float* a, const float* b, float* c, int m, int n, int k) {
    extern __shared__ float tiles[];
    float* tile_a = tiles;
    float* tile_b = tiles + kTile * kTile;
    const int row = blockIdx.y * kTile + threadIdx.y;
    const int column = blockIdx.x * kTile + threadIdx.x;
    const int slot = threadIdx.y * kTile + threadIdx.x;
    float sum = 0.0f;
    for (int start = 0; start < k; start += kTile) {
        const int a_column = start + threadIdx.x;
        const int b_row = start + threadIdx.y;
        tile_a[slot] = row < m && a_column < k ? a[row * k + a_column] : 0.0f;
        tile_b[slot] = b_row < k && column < n ? b[b_row * n + column] : 0.0f;
        __syncthreads();
        for (int i = 0; i < kTile; i++) {
            sum += tile_a[threadIdx.y * kTile + i] * tile_b[i * kTile + threadIdx.x];
        }
        __syncthreads();
    }
    if (row < m && column < n) {
        c[row * n + column] = sum;
    }
}

void run(int m, int n, int k, bool dynamic) {
    std::vector<float> a(m * k), b(k * n), c(m * n, -1.0f);
    for (int i = 0; i < m * k; i++) {
        a[i] = static_cast<float>(i % 7 - 3);  // small integers: every sum is exact
    }
    for (int i = 0; i < k * n; i++) {
        b[i] = static_cast<float>(i % 5 - 2);
    }
    float *device_a = nullptr, *device_b = nullptr, *device_c = nullptr;
    CUDA_OK(cudaMalloc(&device_a, a.size() * sizeof(float)));
    CUDA_OK(cudaMalloc(&device_b, b.size() * sizeof(float)));
    CUDA_OK(cudaMalloc(&device_c, c.size() * sizeof(float)));
    CUDA_OK(cudaMemcpy(device_a, a.data(), a.size() * sizeof(float), cudaMemcpyHostToDevice));
    CUDA_OK(cudaMemcpy(device_b, b.data(), b.size() * sizeof(float), cudaMemcpyHostToDevice));
    const dim3 block(kTile, kTile);
    const dim3 grid((n + kTile - 1) / kTile, (m + kTile - 1) / kTile);
    if (dynamic) {
        multiply_dynamic<<<grid, block, 2 * kTile * kTile * sizeof(float)>>>(device_a, device_b, device_c, m, n, k);
    } else {
        multiply_static<<<grid, block>>>(device_a, device_b, device_c, m, n, k);
    }
    CUDA_OK(cudaGetLastError());
    CUDA_OK(cudaMemcpy(c.data(), device_c, c.size() * sizeof(float), cudaMemcpyDeviceToHost));
    int wrong = 0;
    for (int row = 0; row < m; row++) {
        for (int column = 0; column < n; column++) {
            float sum = 0.0f;
            for (int i = 0; i < k; i++) {
                sum += a[row * k + i] * b[i * n + column];
            }
            wrong += c[row * n + column] != sum;
        }
    }
    check(wrong == 0, "%dx%dx%d, %s shared memory: %d elements differ", m, n, k, dynamic ? "dynamic" : "static", wrong);
    CUDA_OK(cudaFree(device_a));
    CUDA_OK(cudaFree(device_b));
    CUDA_OK(cudaFree(device_c));
}

int main(int argc, char** argv) {
    limit_seconds(120);
    const int size = static_cast<int>(number_argument(argc, argv, 1, 64));
    run(size, size, size, false);
    run(size, size, size, true);
    run(37, 21, 50, false);
    run(37, 21, 50, true);
    return finish("matrix_multiply");
}
