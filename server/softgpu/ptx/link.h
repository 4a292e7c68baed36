// Several translation units as one: what one declares and another defines becomes one thing, and names that are a
// unit's own are kept apart.
//
// Ownership: the result points into the texts of the units, and into `names` where a name had to be changed; both must
// outlive it. Threads: any. Errors: invalid_input when two units define the same name.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "common/result.h"
#include "server/softgpu/ptx/ast.h"

namespace gpupool::softgpu::ptx {

// Linked units travel as one text, which is PTX to whoever looks at its beginning only.
std::string join_units(const std::vector<std::string>& units);
// The units of such a text; the text itself when it is none.
std::vector<std::string_view> split_units(std::string_view text);

Result<Module> link(std::vector<Module> units, std::deque<std::string>& names);

}  // namespace gpupool::softgpu::ptx
