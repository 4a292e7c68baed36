// Mistakes and the runtime's results for them; permanent errors (an illegal address) happen in a child process.
#include <spawn.h>
#include <sys/wait.h>

#include "tests/programs/runtime.h"

using namespace gpupool::programs;

extern char** environ;

__global__ void touch(int* data) {
    if (data != nullptr) {
        data[threadIdx.x] = 1;
    }
}

__global__ void write_to(int* address) {
    *address = 1;
}

// CUDA 12's runtime checks a launch's dimensions itself; CUDA 13's passes them on and returns the driver's error.
cudaError_t bad_dimensions() {
    int version = 0;
    CUDA_OK(cudaRuntimeGetVersion(&version));
    return version >= 13000 ? cudaErrorInvalidValue : cudaErrorInvalidConfiguration;
}

void launches(int* device) {
    const cudaError_t expected = bad_dimensions();
    touch<<<1, 4096>>>(device);
    check_error(cudaPeekAtLastError(), expected, "4096 threads per block, peeked");
    check_error(cudaGetLastError(), expected, "4096 threads per block");
    check_error(cudaGetLastError(), cudaSuccess, "an error is reported once");
    touch<<<0, 32>>>(device);
    check_error(cudaGetLastError(), expected, "an empty grid");
    touch<<<1, 0>>>(device);
    check_error(cudaGetLastError(), expected, "an empty block");
    touch<<<1, dim3(1, 1, 128)>>>(device);
    check_error(cudaGetLastError(), expected, "a block 128 deep");
    touch<<<1, 32, 100 << 20>>>(device);
    check_error(cudaGetLastError(), cudaErrorInvalidValue, "100 MiB of shared memory");
    touch<<<1, 32>>>(device);
    check_error(cudaGetLastError(), cudaSuccess, "a right launch after wrong ones");
    check_error(cudaDeviceSynchronize(), cudaSuccess, "and its synchronization");
}

void memory(int* device) {
    char host[64] = {};
    void* pointer = nullptr;
    check_error(cudaMalloc(&pointer, size_t{1} << 50), cudaErrorMemoryAllocation, "an allocation of 1 PiB");
    check_error(cudaGetLastError(), cudaErrorMemoryAllocation, "which is the last error");
    check_error(cudaGetLastError(), cudaSuccess, "until it has been taken");
    check_error(cudaFree(nullptr), cudaSuccess, "free of null");
    check_error(cudaFree(reinterpret_cast<void*>(0x1000)), cudaErrorInvalidValue, "free of a bad pointer");
    check_error(cudaFree(host), cudaErrorInvalidValue, "free of a host pointer");
    CUDA_OK(cudaMalloc(&pointer, 1024));
    check_error(cudaFree(pointer), cudaSuccess, "a free");
    check_error(cudaFree(pointer), cudaErrorInvalidValue, "the same free again");
    check_error(cudaMemcpy(device, host, 16, static_cast<cudaMemcpyKind>(77)), cudaErrorInvalidMemcpyDirection,
                "a copy in no direction");
    check_error(cudaFreeHost(host), cudaErrorInvalidValue, "free of unpinned host memory");
    cudaGetLastError();
}

void handles() {
    check_error(cudaSetDevice(999), cudaErrorInvalidDevice, "a device that is not there");
    cudaDeviceProp properties;
    check_error(cudaGetDeviceProperties(&properties, -1), cudaErrorInvalidDevice, "properties of device -1");
    cudaEvent_t first, second;
    CUDA_OK(cudaEventCreate(&first));
    CUDA_OK(cudaEventCreate(&second));
    float milliseconds = 0.0f;
    check_error(cudaEventElapsedTime(&milliseconds, first, second), cudaErrorInvalidResourceHandle,
                "elapsed time of events that were never recorded");
    check_error(cudaEventQuery(first), cudaSuccess, "an event that was never recorded is complete");
    check_error(cudaEventSynchronize(first), cudaSuccess, "and can be waited for");
    CUDA_OK(cudaEventDestroy(first));
    CUDA_OK(cudaEventDestroy(second));
    cudaGetLastError();
    check(strcmp(cudaGetErrorName(cudaErrorIllegalAddress), "cudaErrorIllegalAddress") == 0, "the name of an error");
}

// Runs in a child process: after this mistake no call works.
int illegal_address() {
    int* device = nullptr;
    CUDA_OK(cudaMalloc(&device, 1024));
    write_to<<<1, 1>>>(reinterpret_cast<int*>(0x10));
    check_error(cudaGetLastError(), cudaSuccess, "the launch itself");
    check_error(cudaDeviceSynchronize(), cudaErrorIllegalAddress, "synchronizing with an illegal write");
    void* pointer = nullptr;
    check_error(cudaMalloc(&pointer, 1024), cudaErrorIllegalAddress, "an allocation after it");
    check_error(cudaFree(device), cudaErrorIllegalAddress, "a free after it");
    int value = 0;
    check_error(cudaMemcpy(&value, device, sizeof value, cudaMemcpyDeviceToHost), cudaErrorIllegalAddress,
                "a copy after it");
    check_error(cudaDeviceSynchronize(), cudaErrorIllegalAddress, "synchronizing again");
    return finish("errors: illegal address");
}

int run_child(const char* mode) {
    char program[] = "/proc/self/exe";
    char* arguments[] = {program, const_cast<char*>(mode), nullptr};
    pid_t child = -1;
    if (posix_spawn(&child, program, nullptr, nullptr, arguments, environ) != 0) {
        return -1;
    }
    int status = -1;
    waitpid(child, &status, 0);
    return status;
}

int main(int argc, char** argv) {
    limit_seconds(120);
    if (argc > 1 && strcmp(argv[1], "--illegal-address") == 0) {
        return illegal_address();
    }
    int* device = nullptr;
    CUDA_OK(cudaMalloc(&device, 4096 * sizeof(int)));
    launches(device);
    memory(device);
    handles();
    check(run_child("--illegal-address") == 0, "an illegal address, in a child process");
    check_error(cudaMemset(device, 0, 1024), cudaSuccess, "this process is not touched by that");
    check_error(cudaDeviceSynchronize(), cudaSuccess, "nor is its device");
    CUDA_OK(cudaFree(device));
    return finish("errors");
}
