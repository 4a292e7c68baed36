// What the module, library and launch entry points share about functions.
//
// Threads: any. Errors: CUresult.
#pragma once

#include "server/softgpu/api/objects.h"

namespace gpupool::softgpu {

constexpr int kMaxStaticSharedBytes = 49152;
constexpr int kMaxSharedBytes = 232448;

// Resolves a function handle, or a kernel handle, which means its function in the current context. Only launches and
// the occupancy calculator accept kernels.
CUresult find_function(CUfunction handle, std::shared_ptr<Function>& result);
CUresult function_attribute(const CompiledFunction& code, const std::map<int, int>& set, CUfunction_attribute attribute,
                            int& value);
CUresult set_function_attribute(const CompiledFunction& code, std::map<int, int>& set, CUfunction_attribute attribute,
                                int value);
CUresult param_info(const CompiledFunction& code, std::size_t index, std::size_t* offset, std::size_t* size);
// Either output may be null, and so may `variable`: then it is CUDA_ERROR_NOT_FOUND.
CUresult variable_info(const ModuleVariable* variable, CUdeviceptr* pointer, std::size_t* bytes);
// The most dynamic shared memory that a launch may request.
int dynamic_shared_limit(const CompiledFunction& code, const std::map<int, int>& set);
// The multiprocessors of a device.
std::uint32_t processor_count();
// Blocks that fit on one multiprocessor at once; 0 if none fits.
int resident_blocks(const CompiledFunction& code, int threads, std::size_t dynamic_shared_bytes);

}  // namespace gpupool::softgpu
