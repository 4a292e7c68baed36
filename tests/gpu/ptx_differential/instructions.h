// The instructions of the differential test: one line of PTX each, and the kinds of its operands.
//
// Ownership: values. Threads: any. Errors: none.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace gpupool::differential {

// What an operand holds, which determines its register's width and the tested values.
//   integers   H 16 bits, R 32 bits, L 64 bits, S a shift's amount (32 bits)
//   floating   h f16, b bf16, F f32, D f64; x and y: two f16, two bf16 in 32 bits
//   other      p a predicate
using Kind = char;

unsigned width_bits(Kind kind);  // 1 for a predicate
inline bool is_floating(Kind kind) {
    return std::string("hbFDxy").find(kind) != std::string::npos;
}

// How far two results may differ that both conform to PTX.
struct Tolerance {
    enum class Rule : std::uint8_t { exact, relative, absolute, either } rule = Rule::exact;
    double bound = 0;         // of the difference of two results: twice the error that PTX permits for each
    double domain_least = 0;  // magnitudes of the first operand for which PTX gives a bound; 0, 0: all
    double domain_most = 0;
    bool domain_of_second = false;  // the magnitudes are the second operand's
};

struct Instruction {
    std::string text;  // {d} stands for the result, {a} {b} {c} for operands
    Kind result = 'R';
    std::string operands;  // kinds of {a}, {b}, {c}
    Tolerance tolerance;

    // The mnemonics alone: the row's name in the summary.
    std::string name() const;
};

std::vector<Instruction> all_instructions();

// `text` with registers in place of the placeholders.
std::string fill(std::string text, const std::string& d, const std::vector<std::string>& operands);

}  // namespace gpupool::differential
