// Names and descriptions of CUresult values: what cuGetErrorName and cuGetErrorString answer.
//
// Until a session exists the texts are our own; the server's driver then tells its own, newer codes included.
//
// Ownership: every text that was returned once stays valid until the process ends. Threads: any; look-ups take no lock.
// Errors: an unknown code is null (the driver's INVALID_VALUE).
#pragma once

#include <string_view>

#include "protocol/calls/cuda_api.h"

namespace gpupool::client::error_text {

// "CUDA_ERROR_OUT_OF_MEMORY"
const char* name(CUresult code) noexcept;
// "out of memory"
const char* description(CUresult code) noexcept;

// The code that a peer sent as a number. Only codes that have a name are taken: of any other number an application, or
// a switch of ours, would know nothing. Those are CUDA_ERROR_UNKNOWN.
CUresult from_peer(int number) noexcept;

// Replaces the texts of one code; an empty text leaves what there was. False where the code or a text is beyond our
// limits, or too much was learned already: the texts are kept for ever.
bool learn(int code, std::string_view name, std::string_view description);

}  // namespace gpupool::client::error_text
