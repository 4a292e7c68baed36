// Which options of the JIT compiler and linker are plain numbers that may be sent.
#pragma once

#include "protocol/calls/cuda_api.h"

namespace gpupool {

// Whether the option's value is an address, or the size of memory at an address. Such a value has no meaning in another
// process.
constexpr bool is_jit_pointer(int option) {
    switch (option) {
        case CU_JIT_INFO_LOG_BUFFER:
        case CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES:
        case CU_JIT_ERROR_LOG_BUFFER:
        case CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES:
        case CU_JIT_GLOBAL_SYMBOL_NAMES:
        case CU_JIT_GLOBAL_SYMBOL_ADDRESSES:
        case CU_JIT_GLOBAL_SYMBOL_COUNT:
        case CU_JIT_REFERENCED_KERNEL_NAMES:
        case CU_JIT_REFERENCED_KERNEL_COUNT:
        case CU_JIT_REFERENCED_VARIABLE_NAMES:
        case CU_JIT_REFERENCED_VARIABLE_COUNT: return true;
        default: return false;
    }
}

}  // namespace gpupool
