// __constant__ and __device__ variables: initial values, copies to and from symbols (offsets, asynchronous), addresses
// and sizes.
#include "tests/programs/runtime.h"

using namespace gpupool::programs;

__constant__ int table[16] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
__constant__ double factor = 0.5;
__device__ int counter = 41;
__device__ float samples[64];
struct Settings {
    char tag;
    long long big;
    short small;
};
__device__ Settings settings = {'g', 1LL << 40, -7};

__global__ void use_constants(double* out) {
    const int i = threadIdx.x;
    out[i] = table[i] * factor;
    if (i == 0) {
        counter += 1;
    }
}

__global__ void double_samples() {
    samples[threadIdx.x] *= 2.0f;
}

__global__ void read_settings(long long* out) {
    out[0] = settings.tag;
    out[1] = settings.big;
    out[2] = settings.small;
}

int main() {
    limit_seconds(120);
    double* out = nullptr;
    double seen[16];
    CUDA_OK(cudaMalloc(&out, sizeof seen));

    use_constants<<<1, 16>>>(out);
    CUDA_OK(cudaMemcpy(seen, out, sizeof seen, cudaMemcpyDeviceToHost));
    check(seen[0] == 0.5 && seen[15] == 8.0, "constants have their initial values");
    int count = 0;
    CUDA_OK(cudaMemcpyFromSymbol(&count, counter, sizeof count));
    check(count == 42, "an initialised __device__ variable was read and written (%d)", count);

    const int changed[4] = {100, 200, 300, 400};
    const double new_factor = 2.0;
    CUDA_OK(cudaMemcpyToSymbol(table, changed, sizeof changed, 4 * sizeof(int)));
    CUDA_OK(cudaMemcpyToSymbol(factor, &new_factor, sizeof new_factor));
    use_constants<<<1, 16>>>(out);
    CUDA_OK(cudaMemcpy(seen, out, sizeof seen, cudaMemcpyDeviceToHost));
    check(seen[3] == 8.0 && seen[4] == 200.0 && seen[7] == 800.0 && seen[8] == 18.0,
          "constants changed, with an offset");

    cudaStream_t stream;
    CUDA_OK(cudaStreamCreate(&stream));
    float host_samples[64], back[64] = {};
    for (int i = 0; i < 64; i++) {
        host_samples[i] = 1.5f * static_cast<float>(i);
    }
    CUDA_OK(cudaMemcpyToSymbolAsync(samples, host_samples, sizeof samples, 0, cudaMemcpyHostToDevice, stream));
    double_samples<<<1, 64, 0, stream>>>();
    CUDA_OK(cudaMemcpyFromSymbolAsync(back, samples, 32 * sizeof(float), 32 * sizeof(float), cudaMemcpyDeviceToHost,
                                      stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    int wrong = 0;
    for (int i = 0; i < 32; i++) {
        wrong += back[i] != 3.0f * static_cast<float>(i + 32);
    }
    check(wrong == 0, "asynchronous copies to and from a symbol: %d elements differ", wrong);

    void* address = nullptr;
    size_t bytes = 0;
    CUDA_OK(cudaGetSymbolAddress(&address, counter));
    CUDA_OK(cudaGetSymbolSize(&bytes, samples));
    check(bytes == sizeof samples, "size of a symbol: %zu bytes", bytes);
    const int value = 7;
    CUDA_OK(cudaMemcpy(address, &value, sizeof value, cudaMemcpyHostToDevice));
    CUDA_OK(cudaMemcpyFromSymbol(&count, counter, sizeof count));
    check(count == 7, "a symbol's address is the symbol (%d)", count);

    long long* fields = nullptr;
    long long read[3] = {};
    CUDA_OK(cudaMalloc(&fields, sizeof read));
    read_settings<<<1, 1>>>(fields);
    CUDA_OK(cudaMemcpy(read, fields, sizeof read, cudaMemcpyDeviceToHost));
    check(read[0] == 'g' && read[1] == 1LL << 40 && read[2] == -7, "an initialised structure");

    CUDA_OK(cudaFree(fields));
    CUDA_OK(cudaFree(out));
    CUDA_OK(cudaStreamDestroy(stream));
    return finish("constant_and_globals");
}
