// PTX of the differential test: a kernel for one instruction.
//
// Ownership: values. Threads: any. Errors: none.
#pragma once

#include "tests/gpu/ptx_differential/values.h"

namespace gpupool::differential {

constexpr unsigned kOperandWords = 3;

std::string module_header();
std::string thread_index();  // into %index; needs %size, both .b32
// An entry `name` (.u64 in, .u64 out, .u32 count): operand_words words in and one word out for each thread.
std::string instruction_kernel(const std::string& name, const Instruction& instruction);

}  // namespace gpupool::differential
