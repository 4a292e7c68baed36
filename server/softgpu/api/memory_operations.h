// Stream memory operations: wait for a word in memory, or write one.
//
// Threads: any. Errors: CUresult.
#pragma once

#include "server/softgpu/api/objects.h"

namespace gpupool::softgpu {

CUresult check_operations(unsigned count, const CUstreamBatchMemOpParams* operations, unsigned flags);
// Runs the operations in order on the calling thread. A wait ends early if the context ends.
CUresult run_operations(const std::vector<CUstreamBatchMemOpParams>& operations, Context& context);

}  // namespace gpupool::softgpu
