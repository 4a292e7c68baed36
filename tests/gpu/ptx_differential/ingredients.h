// The instructions of which the random programs of the differential test consist. PTX defines their results to the last
// bit in any context. Besides those of the table there are some that need a program around them.
//
// Ownership: values. Threads: any. Errors: none.
#pragma once

#include "tests/gpu/ptx_differential/instructions.h"

namespace gpupool::differential {

struct Ingredient {
    Instruction instruction;
    // Whether the result is stored and loaded again. The driver's assembler folds conversions of converted values, and
    // of their bits (docs/software-gpu.md), which would hide the single instruction's result.
    bool through_memory = false;
    bool cleans_nans = false;  // a NaN's sign or bits would be visible in the result, so operands get one canonical NaN
    bool guardable = false;    // may be predicated: one machine instruction
    bool together = false;     // executed by all threads of the block together
};

std::vector<Ingredient> ingredients();

// Definitions that some of them use: functions of the module, variables of the kernel that are zero at first
// (`scratch`), and of the block (`exchange`).
std::string program_functions();
std::string program_variables();
constexpr unsigned kThreadsPerBlock = 128;

}  // namespace gpupool::differential
