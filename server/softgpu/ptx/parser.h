// Parses PTX text to a tree.
//
// Ownership: the tree points into `text`. Threads: any; no shared state.
// Errors: invalid_input with "line N: ..." for text that is not PTX, limit_exceeded for text beyond our limits,
//   unsupported for a later version of PTX.
#pragma once

#include <string_view>
#include <utility>

#include "common/result.h"
#include "server/softgpu/ptx/ast.h"

namespace gpupool::softgpu::ptx {

// The version of CUDA 13.0.
constexpr std::pair<std::uint32_t, std::uint32_t> kLatestVersion{9, 0};

// Does not check instructions; the lowering decides whether `foo.bar.u32` exists.
Result<Module> parse(std::string_view text);

}  // namespace gpupool::softgpu::ptx
