// The private tables of cuGetExportTable that NVIDIA's libraries cannot do without.
//
// cudart and the libraries on top of it ask the driver for tables of functions by UUID. Those listed here are what
// libcudart 12 and 13, cuBLAS, cuBLASLt, cuFFT and cuDNN were seen to use; any other UUID is unknown, which the
// libraries take as "no such feature". Slots that nobody was seen to call refuse with CUDA_ERROR_NOT_SUPPORTED and say
// so in the log.
//
// Ownership: tables live as long as the process, at one address each. Threads: any. Errors: an unknown UUID is null.
#pragma once

#include "protocol/calls/cuda_api.h"

namespace gpupool::client::export_tables {

// The table, or null where there is none of that name.
const void* find(const CUuuid& id) noexcept;

// To be called inside the call that ends a context (destroy, reset, release of the last reference), before its handle
// is forgotten: runs the destructors of what was stored for it.
void context_ends(CUcontext context) noexcept;

}  // namespace gpupool::client::export_tables
