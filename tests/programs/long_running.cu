// Holds a session: allocates, then launches a small kernel ten times a second until its time is up.
// Arguments: seconds (default 2), MiB to allocate (default 16). Prints "ready" once it holds everything.
#include <chrono>
#include <thread>

#include "tests/programs/runtime.h"

using namespace gpupool::programs;

__global__ void beat(unsigned* counter) {
    *counter += 1;
}

int main(int argc, char** argv) {
    const long long seconds = number_argument(argc, argv, 1, 2);
    const size_t bytes = static_cast<size_t>(number_argument(argc, argv, 2, 16)) << 20;
    limit_seconds(static_cast<unsigned>(seconds) + 60);
    unsigned* counter = nullptr;
    unsigned char* block = nullptr;
    CUDA_OK(cudaMalloc(&counter, sizeof *counter));
    CUDA_OK(cudaMemset(counter, 0, sizeof *counter));
    if (bytes > 0) {
        CUDA_OK(cudaMalloc(&block, bytes));
        CUDA_OK(cudaMemset(block, 0x3c, bytes));
    }
    CUDA_OK(cudaDeviceSynchronize());
    printf("ready\n");
    fflush(stdout);

    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
    unsigned beats = 0;
    while (std::chrono::steady_clock::now() < end) {
        beat<<<1, 1>>>(counter);
        CUDA_OK(cudaGetLastError());
        CUDA_OK(cudaDeviceSynchronize());
        beats += 1;
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    unsigned seen = 0;
    CUDA_OK(cudaMemcpy(&seen, counter, sizeof seen, cudaMemcpyDeviceToHost));
    check(seen == beats, "%u of %u launches arrived", seen, beats);
    if (bytes > 0) {
        unsigned char ends[2] = {};
        CUDA_OK(cudaMemcpy(&ends[0], block, 1, cudaMemcpyDeviceToHost));
        CUDA_OK(cudaMemcpy(&ends[1], block + bytes - 1, 1, cudaMemcpyDeviceToHost));
        check(ends[0] == 0x3c && ends[1] == 0x3c, "%zu MiB kept their contents", bytes >> 20);
        CUDA_OK(cudaFree(block));
    }
    CUDA_OK(cudaFree(counter));
    return finish("long_running");
}
