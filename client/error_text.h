// Names and descriptions of CUresult values, as cuGetErrorName and cuGetErrorString return them.
//
// Before a session exists the texts are built in. The server's driver then supplies its own, including those of newer
// codes.
//
// Ownership: every returned text stays valid until the process ends.
// Threads: any; lookups take no lock.
// Errors: null for an unknown code (for which the driver returns CUDA_ERROR_INVALID_VALUE).
#pragma once

#include <string_view>

#include "protocol/calls/cuda_api.h"

namespace gpupool::client::error_text {

// "CUDA_ERROR_OUT_OF_MEMORY"
const char* name(CUresult code) noexcept;
// "out of memory"
const char* description(CUresult code) noexcept;

// Converts a number from a peer. A number without a name becomes CUDA_ERROR_UNKNOWN, because applications and gpupool's
// own code could not handle it.
CUresult from_peer(int number) noexcept;

// Replaces the texts of one code; an empty text changes nothing. False if the code or a text is too large, or if too
// much was learned already: texts are kept for ever.
bool learn(int code, std::string_view name, std::string_view description);

}  // namespace gpupool::client::error_text
