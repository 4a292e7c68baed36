// A kernel with its launch parameters. A launch submits one; a kernel node stores one.
//
// Ownership: a KernelCall keeps its code alive, so it can run to its end even if the module is unloaded meanwhile.
// Threads: any; a call is not changed once made. Errors: CUresult, as a launch returns it.
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
    unsigned cluster[3] = {0, 0, 0};  // zero: as compiled
};

struct KernelCall {
    std::shared_ptr<Function> function;
    std::shared_ptr<Module> module;
    unsigned grid[3] = {1, 1, 1};
    unsigned block[3] = {1, 1, 1};
    unsigned shared_bytes = 0;
    bool cooperative = false;
    unsigned cluster[3] = {1, 1, 1};
    std::vector<std::uint32_t> processors;  // those of a green context; none: all
    std::vector<std::uint64_t> params;      // as the kernel sees them, 8-byte aligned
    std::vector<std::uint64_t> references;  // objects of the module's texture and surface references
};

CUresult make_kernel_call(const KernelRequest& request, KernelCall& call);
// Runs the kernel to its end on the calling thread, with the texture objects of the time of its launch.
CUresult run_kernel(const KernelCall& call, Context& context, std::uint32_t texture_generation);

}  // namespace gpupool::softgpu
