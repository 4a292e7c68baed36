// Shared by the two fork programs: a sum on the device, and starting a child.
//
// Threads: none; fork() and threads do not mix. Errors: as in runtime.h.
#pragma once

#include <sys/wait.h>

#include "tests/programs/runtime.h"

namespace gpupool::programs {

static __global__ void add_all(const int* input, int count, int* sum) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) {
        atomicAdd(sum, input[i]);
    }
}

// 0 + 1 + ... + (count - 1), computed on the device.
inline int sum_on_device(int count) {
    int* host = static_cast<int*>(malloc(count * sizeof(int)));
    for (int i = 0; i < count; i++) {
        host[i] = i;
    }
    int *input = nullptr, *sum = nullptr;
    CUDA_OK(cudaMalloc(&input, count * sizeof(int)));
    CUDA_OK(cudaMalloc(&sum, sizeof(int)));
    CUDA_OK(cudaMemset(sum, 0, sizeof(int)));
    CUDA_OK(cudaMemcpy(input, host, count * sizeof(int), cudaMemcpyHostToDevice));
    add_all<<<(count + 127) / 128, 128>>>(input, count, sum);
    CUDA_OK(cudaGetLastError());
    int result = -1;
    CUDA_OK(cudaMemcpy(&result, sum, sizeof result, cudaMemcpyDeviceToHost));
    CUDA_OK(cudaFree(input));
    CUDA_OK(cudaFree(sum));
    free(host);
    return result;
}

// Forks; the child runs `work`, whose result is its exit status. It ends with _exit, because it must not destroy the
// parent's objects.
template <class Work>
pid_t start_child(Work work) {
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        limit_seconds(60);
        const int status = work();
        fflush(stdout);
        _exit(status);
    }
    return child;
}

inline bool child_succeeded(pid_t child) {
    int status = -1;
    return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace gpupool::programs
