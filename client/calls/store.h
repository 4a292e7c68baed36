// Returns a value through an entry point's output.
//
// Threads: any. Errors: CUDA_ERROR_INVALID_VALUE for a null output.
#pragma once

#include <type_traits>

#include "protocol/calls/cuda_api.h"

namespace gpupool::client::entry {

template <class T>
CUresult store(T* out, const std::type_identity_t<T>& value) noexcept {
    if (out == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *out = value;
    return CUDA_SUCCESS;
}

}  // namespace gpupool::client::entry
