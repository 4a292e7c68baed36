// What module, library and launch entry points share about functions.
//
// Threads: any. Errors: CUresult.
#pragma once

#include "server/softgpu/api/objects.h"

namespace gpupool::softgpu {

constexpr int kMaxStaticSharedBytes = 49152;
constexpr int kMaxSharedBytes = 232448;

// A function handle, or a kernel's, which stands for its function in the current context.
CUresult find_function(CUfunction handle, std::shared_ptr<Function>& result);
CUresult function_attribute(const CompiledFunction& code, const std::map<int, int>& set, CUfunction_attribute attribute,
                            int& value);
CUresult set_function_attribute(const CompiledFunction& code, std::map<int, int>& set, CUfunction_attribute attribute,
                                int value);
CUresult param_info(const CompiledFunction& code, std::size_t index, std::size_t* offset, std::size_t* size);
// How much dynamic shared memory a launch may ask for.
int dynamic_shared_limit(const CompiledFunction& code, const std::map<int, int>& set);
// Blocks that fit on one multiprocessor; 0 when not even one does.
int resident_blocks(const CompiledFunction& code, int threads, std::size_t dynamic_shared_bytes);

}  // namespace gpupool::softgpu
