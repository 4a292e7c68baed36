// The driver API exactly as CUDA's headers declare it, every version of every symbol included.
//
// `__CUDA_API_VERSION_INTERNAL` makes cuda.h declare the old names beside the new ones and stop mapping one to the
// other by macros, so that `cuMemAlloc` and `cuMemAlloc_v2` are two functions here.
#pragma once

#ifndef __CUDA_API_VERSION_INTERNAL
#define __CUDA_API_VERSION_INTERNAL 1
#endif
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
#pragma GCC diagnostic ignored "-Wpedantic"
#include <cuda.h>
#include <cudaProfiler.h>
#pragma GCC diagnostic pop
