// PTX text to a tree.
//
// Ownership: the tree points into `text`. Threads: any; no shared state.
// Errors: invalid_input with "line N: ..." for text that is not PTX, limit_exceeded for text beyond our limits,
// unsupported for a later version of PTX.
#pragma once

#include <string_view>
#include <utility>

#include "common/result.h"
#include "server/softgpu/ptx/ast.h"

namespace gpupool::softgpu::ptx {

// As CUDA 13.0 has it.
constexpr std::pair<std::uint32_t, std::uint32_t> kLatestVersion{9, 0};

// Instructions are not checked here: whether `foo.bar.u32` exists is the lowering's business.
Result<Module> parse(std::string_view text);

}  // namespace gpupool::softgpu::ptx
