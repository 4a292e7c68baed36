// PTX of the differential test: a kernel for one instruction, and random programs.
//
// Ownership: values. Threads: any. Errors: none.
#pragma once

#include "tests/gpu/ptx_differential/values.h"

namespace gpupool::differential {

constexpr unsigned operand_words = 3;

std::string module_header();
// An entry `name` (.u64 in, .u64 out, .u32 count): operand_words words in and one word out for each thread.
std::string instruction_kernel(const std::string& name, const Instruction& instruction);

// A random program: each thread begins with registers that it reads, runs instructions, branches and short loops, and
// writes down what each instruction gave as it goes.
struct Step {
    const Instruction* instruction = nullptr;
    std::string text;
    unsigned result = 0;  // registers, as places in the thread's input
    std::vector<unsigned> operands;
};
struct Program {
    std::string text;             // a module with the entry `program` (.u64 in, .u64 out)
    std::vector<Kind> registers;  // a word of input for each
    std::vector<Step> steps;      // by the number that a record begins with
    unsigned most_records = 0;    // that a thread writes, the last one included
};
// A record: the step's number and the result, a word each; the last has this number.
constexpr std::uint64_t last_record = 0xFFFFFFFF;

Program random_program(std::uint64_t seed, const std::vector<Instruction>& instructions);

}  // namespace gpupool::differential
