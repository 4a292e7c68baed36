// What the random programs of the differential test are made of: instructions whose result PTX defines to the last bit
// wherever they stand, and, besides those of the table, some that need a program around them.
//
// Ownership: values. Threads: any. Errors: none.
#pragma once

#include "tests/gpu/ptx_differential/instructions.h"

namespace gpupool::differential {

struct Ingredient {
    Instruction instruction;
    // The result comes back from memory: the driver's assembler folds conversions of converted values, and of their
    // bits, into others (docs/software-gpu.md), which is no matter of the single instruction.
    bool through_memory = false;
    bool cleans_nans = false;  // a NaN's sign or bits would show in the result: operands with the one NaN instead
    bool guardable = false;    // may stand behind a predicate: one machine instruction
    bool together = false;     // for all threads of the block at once
};

std::vector<Ingredient> ingredients();

// What some of them use: functions of the module, and variables of the kernel that a thread finds zeroed (`scratch`),
// and of the block (`exchange`).
std::string program_functions();
std::string program_variables();
constexpr unsigned threads_of_a_block = 128;

}  // namespace gpupool::differential
