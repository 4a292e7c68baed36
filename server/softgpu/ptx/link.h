// Links translation units into one: resolves declarations to the definitions in other units, and renames names that are
// local to a unit.
//
// Ownership: the result points into the texts of the units, and into `names` for names that were changed. Both must
//   outlive it.
// Threads: any. Errors: invalid_input if two units define the same name.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "common/result.h"
#include "server/softgpu/ptx/ast.h"

namespace gpupool::softgpu::ptx {

// Joins the texts of units into one text, which begins like PTX.
std::string join_units(const std::vector<std::string>& units);
// Splits such a text into its units. Returns the text itself if it was not joined.
std::vector<std::string_view> split_units(std::string_view text);

Result<Module> link(std::vector<Module> units, std::deque<std::string>& names);

}  // namespace gpupool::softgpu::ptx
