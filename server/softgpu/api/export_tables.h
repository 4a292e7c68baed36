// The private tables that CUDA's own libraries ask for (cuGetExportTable).
//
// Ownership: everything lives as long as the process. Threads: any. Errors: none.
#pragma once

#include "server/softgpu/api/objects.h"

namespace gpupool::softgpu {

// Once, when the devices are known.
void install_export_tables();

// Inside the call that ends a context, before it is closed: tells whoever stored something for it. No lock may be held:
// they make CUDA calls.
void tell_context_ends(const Context& context);

}  // namespace gpupool::softgpu
