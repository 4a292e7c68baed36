// The private tables that CUDA's own libraries request (cuGetExportTable).
//
// Ownership: everything lives until the process ends. Threads: any. Errors: none.
#pragma once

#include "server/softgpu/api/objects.h"

namespace gpupool::softgpu {

// Call once, when the devices are known.
void install_export_tables();

// Notifies libraries that stored data for the context. Called by the entry point that ends it, before it is closed. The
// caller must hold no lock, since the libraries make CUDA calls.
void notify_context_end(const Context& context);

}  // namespace gpupool::softgpu
