// Stream memory operations: waiting for a word in memory, and writing one.
//
// Threads: any. Errors: CUresult.
#pragma once

#include "server/softgpu/api/objects.h"

namespace gpupool::softgpu {

CUresult check_operations(unsigned count, const CUstreamBatchMemOpParams* operations, unsigned flags);
// One after the other, on the calling thread; a wait ends early when the context does.
CUresult run_operations(const std::vector<CUstreamBatchMemOpParams>& operations, Context& context);

}  // namespace gpupool::softgpu
