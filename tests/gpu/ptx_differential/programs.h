// Random programs of the differential test.
//
// Every register has one fixed type. PTX defines a program's results to the last bit, except for the bits of NaNs,
// which stay in floating point registers (see ingredients.h). A seed gives the same program everywhere.
//
// Ownership: values; steps point into the given ingredients. Threads: any. Errors: none.
#pragma once

#include "tests/gpu/ptx_differential/ingredients.h"
#include "tests/gpu/ptx_differential/values.h"

namespace gpupool::differential {

// Each thread loads its registers, then runs instructions, branches and short loops, and records the result of each
// instruction.
struct Step {
    const Instruction* instruction = nullptr;
    std::string text;
    unsigned result = 0;  // registers, as indices into the thread's input
    std::vector<unsigned> operands;
};
struct Program {
    std::string text;             // a module with the entry `program` (.u64 in, .u64 out)
    std::vector<Kind> registers;  // one word of input each
    std::vector<Step> steps;      // by the number at the start of a record
    unsigned most_records = 0;    // the most records of a thread, including the last one

    std::size_t words_of_a_thread() const { return std::size_t{most_records} * 2; }
};
// A record is the step's number and the result, a word each; the last record has this number.
constexpr std::uint64_t kLastRecord = 0xFFFFFFFF;

Program random_program(std::uint64_t seed, const std::vector<Ingredient>& ingredients);

// Of all threads' records, with every NaN replaced by one.
std::uint64_t hash_records(const Program& program, const std::vector<std::uint64_t>& records);

}  // namespace gpupool::differential
