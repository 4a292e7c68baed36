// One kernel with everything it is called with: what a launch submits and what a kernel node holds.
//
// Ownership: a KernelCall keeps its code, so that it runs to its end whatever is unloaded meanwhile. Threads: any; a
// call is not changed once made. Errors: CUresult, as a launch gives them.
#pragma once

#include "server/softgpu/api/functions.h"

namespace gpupool::softgpu {

struct KernelRequest {
    CUfunction function = nullptr;
    unsigned grid[3] = {1, 1, 1};
    unsigned block[3] = {1, 1, 1};
    unsigned shared_bytes = 0;
    void** params = nullptr;
    void** extra = nullptr;
    bool cooperative = false;
    unsigned cluster[3] = {0, 0, 0};  // zero: as the kernel was compiled
};

struct KernelCall {
    std::shared_ptr<Function> function;
    std::shared_ptr<Module> module;
    unsigned grid[3] = {1, 1, 1};
    unsigned block[3] = {1, 1, 1};
    unsigned shared_bytes = 0;
    bool cooperative = false;
    unsigned cluster[3] = {1, 1, 1};
    std::vector<std::uint64_t> params;  // as the kernel sees them, 8-byte aligned
};

CUresult make_kernel_call(const KernelRequest& request, KernelCall& call);
// Runs to the end on the calling thread, with the texture objects of when it was launched.
CUresult run_kernel(const KernelCall& call, Context& context, std::uint32_t texture_generation);

}  // namespace gpupool::softgpu
