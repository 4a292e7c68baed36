// Random programs of the differential test.
//
// Every register has one type for good, and what a program computes is defined by PTX to the last bit but for the bits
// of NaNs, which stay in registers of floating point types: ingredients.h. A program is the same wherever it is made.
//
// Ownership: values; steps point into the ingredients that were given. Threads: any. Errors: none.
#pragma once

#include "tests/gpu/ptx_differential/ingredients.h"
#include "tests/gpu/ptx_differential/values.h"

namespace gpupool::differential {

// Each thread begins with registers that it reads, runs instructions, branches and short loops, and writes down what
// each instruction gave as it goes.
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

    std::size_t words_of_a_thread() const { return std::size_t{most_records} * 2; }
};
// A record: the step's number and the result, a word each; the last has this number.
constexpr std::uint64_t last_record = 0xFFFFFFFF;

Program random_program(std::uint64_t seed, const std::vector<Ingredient>& ingredients);

// Of all threads' records, every NaN taken as one.
std::uint64_t hash_records(const Program& program, const std::vector<std::uint64_t>& records);

}  // namespace gpupool::differential
