// The private tables of cuGetExportTable that NVIDIA's libraries need.
//
// cudart and the libraries above it request tables of functions from the driver by UUID. The tables here are those that
// libcudart 12 and 13, cuBLAS, cuBLASLt, cuFFT and cuDNN were observed to use; for any other UUID cuGetExportTable
// fails, and the libraries do without the feature. Slots that were never observed in use return
// CUDA_ERROR_NOT_SUPPORTED and write a log message.
//
// Ownership: tables live as long as the process, at a constant address. Threads: any. Errors: null for an unknown UUID.
#pragma once

#include "protocol/calls/cuda_api.h"

namespace gpupool::client::export_tables {

// The table, or null if the UUID is unknown.
const void* find(const CUuuid& id) noexcept;

// Must be called inside the call that ends a context (destroy, reset, release of the last reference), while its handle
// is still valid: calls the destructors of the values stored for it.
void context_ends(CUcontext context) noexcept;

}  // namespace gpupool::client::export_tables
