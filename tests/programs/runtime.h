// The counterpart of report.h for the runtime API, and a kernel's bounded wait for a flag.
//
// Threads: any. Errors: CUDA_OK ends the program, since results after a failed call are meaningless.
#pragma once

#include <cuda_runtime.h>

#include "tests/programs/report.h"

namespace gpupool::programs {

inline void cuda_ok(cudaError_t status, const char* what, const char* file, int line) {
    if (status != cudaSuccess) {
        char why[160];
        snprintf(why, sizeof why, "%s (%d, %s)", cudaGetErrorName(status), static_cast<int>(status),
                 cudaGetErrorString(status));
        give_up(what, why, file, line);
    }
}

inline bool check_error(cudaError_t actual, cudaError_t expected, const char* what) {
    return check(actual == expected, "%s: %s (%d), expected %s (%d)", what, cudaGetErrorName(actual),
                 static_cast<int>(actual), cudaGetErrorName(expected), static_cast<int>(expected));
}

// A kernel that waits for another must end by itself if that one never runs: after some ten seconds, both on a GPU
// (where each round waits for memory) and on an interpreter (where instructions take the time). Counting rounds needs
// no clock register.
constexpr int kSpinLimit = 40'000'000;

// 1 when the flag was set, 2 when the limit was reached first.
static __device__ __forceinline__ int spin_until_set(const volatile int* flag) {
    for (int i = 0; i < kSpinLimit; i++) {
        if (*flag != 0) {
            return 1;
        }
    }
    return 2;
}

}  // namespace gpupool::programs

#define CUDA_OK(call) ::gpupool::programs::cuda_ok((call), #call, __FILE__, __LINE__)
