// cuda.h with every versioned name declared and exported.
//
// Threads, ownership, errors: as the driver API documents them.
#pragma once

#pragma GCC visibility push(default)
#define __CUDA_API_VERSION_INTERNAL 1
#include <cuda.h>
#include <cudaProfiler.h>
#pragma GCC visibility pop
