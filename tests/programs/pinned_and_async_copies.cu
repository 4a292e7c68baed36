// Copies: pageable, pinned and registered memory, synchronous and asynchronous, one and two dimensions, and memsets.
// Argument: bytes of the one-dimensional copies.
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "tests/programs/runtime.h"

using namespace gpupool::programs;

__global__ void invert(uint8_t* data, size_t bytes) {
    for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < bytes; i += gridDim.x * blockDim.x) {
        data[i] = ~data[i];
    }
}

void fill(uint8_t* data, size_t bytes, unsigned seed) {
    for (size_t i = 0; i < bytes; i++) {
        data[i] = static_cast<uint8_t>(i * 31 + (i >> 8) + seed);
    }
}

size_t differences(const uint8_t* data, size_t bytes, unsigned seed, uint8_t mask) {
    size_t wrong = 0;
    for (size_t i = 0; i < bytes; i++) {
        wrong += data[i] != static_cast<uint8_t>(static_cast<uint8_t>(i * 31 + (i >> 8) + seed) ^ mask);
    }
    return wrong;
}

// To the device, inverted there, and back to the same buffer, all on one stream.
void round_trip(const char* kind, uint8_t* host, uint8_t* device, size_t bytes, unsigned seed, cudaStream_t stream) {
    fill(host, bytes, seed);
    CUDA_OK(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream));
    invert<<<8, 128, 0, stream>>>(device, bytes);
    CUDA_OK(cudaGetLastError());
    CUDA_OK(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    const size_t wrong = differences(host, bytes, seed, 0xff);
    check(wrong == 0, "%s: %zu of %zu bytes differ", kind, wrong, bytes);
}

void one_dimension(size_t bytes) {
    cudaStream_t stream;
    CUDA_OK(cudaStreamCreate(&stream));
    uint8_t *device = nullptr, *other = nullptr, *pinned = nullptr;
    CUDA_OK(cudaMalloc(&device, bytes));
    CUDA_OK(cudaMalloc(&other, bytes));
    CUDA_OK(cudaHostAlloc(&pinned, bytes, cudaHostAllocDefault));
    std::vector<uint8_t> pageable(bytes), back(bytes);

    round_trip("pageable", pageable.data(), device, bytes, 1, stream);
    round_trip("pinned", pinned, device, bytes, 2, stream);
    auto* registered = static_cast<uint8_t*>(aligned_alloc(4096, (bytes + 4095) / 4096 * 4096));
    CUDA_OK(cudaHostRegister(registered, bytes, cudaHostRegisterDefault));
    round_trip("registered", registered, device, bytes, 3, stream);
    CUDA_OK(cudaHostUnregister(registered));
    free(registered);

    // A pageable source may be changed as soon as the asynchronous copy has returned.
    fill(pageable.data(), bytes, 4);
    CUDA_OK(cudaMemcpyAsync(device, pageable.data(), bytes, cudaMemcpyHostToDevice, stream));
    memset(pageable.data(), 0, bytes);
    CUDA_OK(cudaMemcpyAsync(other, device, bytes, cudaMemcpyDeviceToDevice, stream));
    CUDA_OK(cudaMemcpyAsync(back.data(), other, bytes, cudaMemcpyDefault, stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    check(differences(back.data(), bytes, 4, 0) == 0, "a pageable source changed after the call");

    // Data that a copy wrote to pinned memory is the source of the next copy on that stream.
    fill(back.data(), bytes, 5);
    CUDA_OK(cudaMemcpy(device, back.data(), bytes, cudaMemcpyHostToDevice));
    memset(pinned, 0, bytes);
    CUDA_OK(cudaMemcpyAsync(pinned, device, bytes, cudaMemcpyDeviceToHost, stream));
    CUDA_OK(cudaMemcpyAsync(other, pinned, bytes, cudaMemcpyHostToDevice, stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    CUDA_OK(cudaMemcpy(back.data(), other, bytes, cudaMemcpyDeviceToHost));
    check(differences(back.data(), bytes, 5, 0) == 0, "out to pinned memory and in again without synchronizing");

    CUDA_OK(cudaMemset(device, 0x5a, bytes));
    CUDA_OK(cudaMemsetAsync(device + 1, 0xa5, bytes / 2, stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    CUDA_OK(cudaMemcpy(back.data(), device, bytes, cudaMemcpyDeviceToHost));
    size_t wrong = 0;
    for (size_t i = 0; i < bytes; i++) {
        wrong += back[i] != (i >= 1 && i < 1 + bytes / 2 ? 0xa5 : 0x5a);
    }
    check(wrong == 0, "memset at an odd address: %zu bytes differ", wrong);
    check(cudaMemcpyAsync(device, pageable.data(), 0, cudaMemcpyHostToDevice, stream) == cudaSuccess,
          "a copy of nothing");

    CUDA_OK(cudaFreeHost(pinned));
    CUDA_OK(cudaFree(other));
    CUDA_OK(cudaFree(device));
    CUDA_OK(cudaStreamDestroy(stream));
}

void two_dimensions() {
    constexpr size_t kWidth = 75, kHeight = 40, kHostPitch = 96;
    std::vector<uint8_t> host(kHostPitch * kHeight), back(kHostPitch * kHeight, 0xee);
    fill(host.data(), host.size(), 6);
    uint8_t *device = nullptr, *other = nullptr;
    size_t pitch = 0, other_pitch = 0;
    CUDA_OK(cudaMallocPitch(&device, &pitch, kWidth, kHeight));
    CUDA_OK(cudaMallocPitch(&other, &other_pitch, 2 * kWidth, kHeight));
    check(pitch >= kWidth && other_pitch >= 2 * kWidth, "pitches hold their rows (%zu, %zu)", pitch, other_pitch);
    CUDA_OK(cudaMemcpy2D(device, pitch, host.data(), kHostPitch, kWidth, kHeight, cudaMemcpyHostToDevice));
    CUDA_OK(cudaMemcpy2DAsync(other + 3, other_pitch, device, pitch, kWidth, kHeight, cudaMemcpyDeviceToDevice));
    CUDA_OK(cudaMemcpy2D(back.data(), kHostPitch, other + 3, other_pitch, kWidth, kHeight, cudaMemcpyDeviceToHost));
    size_t wrong = 0;
    for (size_t i = 0; i < host.size(); i++) {
        wrong += back[i] != (i % kHostPitch < kWidth ? host[i] : 0xee);
    }
    check(wrong == 0, "rows through three pitches: %zu bytes differ", wrong);

    CUDA_OK(cudaMemset2D(device, pitch, 0x11, kWidth, kHeight));
    CUDA_OK(cudaMemset2D(device + 10, pitch, 0x22, 20, kHeight / 2));
    CUDA_OK(cudaMemcpy2D(back.data(), kHostPitch, device, pitch, kWidth, kHeight, cudaMemcpyDeviceToHost));
    wrong = 0;
    for (size_t y = 0; y < kHeight; y++) {
        for (size_t x = 0; x < kWidth; x++) {
            const bool inside = x >= 10 && x < 30 && y < kHeight / 2;
            wrong += back[y * kHostPitch + x] != (inside ? 0x22 : 0x11);
        }
    }
    check(wrong == 0, "memset of a rectangle: %zu bytes differ", wrong);
    CUDA_OK(cudaFree(other));
    CUDA_OK(cudaFree(device));
}

int main(int argc, char** argv) {
    limit_seconds(120);
    one_dimension(static_cast<size_t>(number_argument(argc, argv, 1, 300'001)));
    two_dimensions();
    return finish("pinned_and_async_copies");
}
