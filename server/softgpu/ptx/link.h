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

constexpr std::uint32_t kMostRegisters = 255;

// The text of a unit, and the most registers for those of its kernels that have no limit of their own. 0: the program
// says that when it loads the code.
template <class Text>
struct Unit {
    Text text;
    std::uint32_t max_registers = 0;
};

// Joins units into one text, which begins like PTX.
std::string join_units(const std::vector<Unit<std::string>>& units);
// Splits such a text into its units. Returns the text itself if it was not joined.
std::vector<Unit<std::string_view>> split_units(std::string_view text);

// Gives each kernel the limit of registers that the compiler of machine code would obey: .maxnreg, or what lets as many
// blocks run as its other directives demand, or else `otherwise` (0: none).
void limit_registers(Module& unit, std::uint32_t otherwise);

Result<Module> link(std::vector<Module> units, std::deque<std::string>& names);

}  // namespace gpupool::softgpu::ptx
