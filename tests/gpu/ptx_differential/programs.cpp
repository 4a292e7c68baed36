#include "tests/gpu/ptx_differential/programs.h"

#include <utility>

#include "tests/gpu/ptx_differential/kernels.h"

namespace gpupool::differential {
namespace {

constexpr unsigned kRegistersPerKind = 5;
constexpr unsigned kInstructionsPerProgram = 150;
constexpr unsigned kMaxRecords = 600;
const std::string kProgramKinds = "HRLShbFDxyp";

// The declared type, since the assembler rejects floating point registers in integer instructions.
const char* register_type(Kind kind) {
    switch (kind) {
        case 'p': return ".pred";
        case 'H':
        case 'h':
        case 'b': return ".b16";
        case 'F': return ".f32";
        case 'D': return ".f64";
        case 'L': return ".b64";
        default: return ".b32";
    }
}
std::string bits_type(Kind kind) {
    return ".b" + std::to_string(width_bits(kind));
}

class Generator {
  public:
    Generator(std::uint64_t seed, const std::vector<Ingredient>& ingredients)
        : random_(seed), ingredients_(ingredients) {
        for (const Kind kind : kProgramKinds) {
            for (unsigned i = 0; i < kRegistersPerKind; ++i) {
                program_.registers.push_back(kind);
            }
        }
    }

    Program generate() {
        block(kInstructionsPerProgram, 1, 0);
        program_.most_records = records_ + 1;
        std::string& text = program_.text;
        text = module_header() + program_functions() + ".visible .entry program(.param .u64 in, .param .u64 out) {\n" +
               program_variables_and_registers() + thread_index() +
               "ld.param.u64 %input, [in]; ld.param.u64 %trace, [out];\n" + "mul.wide.u32 %offset, %index, " +
               std::to_string(program_.registers.size() * 8) + "; add.u64 %input, %input, %offset;\n" +
               "mul.wide.u32 %offset, %index, " + std::to_string(program_.words_of_a_thread() * 8) +
               "; add.u64 %trace, %trace, %offset;\n";
        for (unsigned i = 0; i < program_.registers.size(); ++i) {
            text += read(i);
        }
        text += body_ + "mov.u64 %word, " + std::to_string(kLastRecord) + "; st.global.u64 [%trace], %word;\nret;\n}\n";
        return std::move(program_);
    }

  private:
    std::string name(unsigned index) const { return "%v" + std::to_string(index); }

    std::string program_variables_and_registers() const {
        std::string text =
            ".reg .b32 %index, %size, %bit; .reg .b64 %input, %trace, %word, %offset; .reg .pred %nan;\n" +
            program_variables();
        for (const Kind kind : {'F', 'D'}) {
            for (std::size_t i = 0; i < kOperandWords; ++i) {
                text += std::string(".reg ") + register_type(kind) + " " + clean_name(kind, i) + "; ";
            }
        }
        text += "\n";
        for (unsigned i = 0; i < program_.registers.size(); ++i) {
            text += std::string(".reg ") + register_type(program_.registers[i]) + " " + name(i) + ";\n";
        }
        for (unsigned i = 0; i < loops_; ++i) {
            text += ".reg .b32 %loop" + std::to_string(i) + "; .reg .pred %again" + std::to_string(i) + ";\n";
        }
        return text;
    }

    // Every register's first value.
    std::string read(unsigned index) const {
        const std::string from = ", [%input+" + std::to_string(index * 8) + "];";
        const Kind kind = program_.registers[index];
        if (kind == 'p') {
            return "ld.global.b32 %bit" + from + " setp.ne.u32 " + name(index) + ", %bit, 0;\n";
        }
        return "ld.global" + bits_type(kind) + " " + name(index) + from + "\n";
    }

    unsigned pick(Kind kind) {
        // A shift amount is occasionally any integer of its width.
        const bool any_integer = kind == 'S' && random_.chance(25);
        for (;;) {
            const auto index = static_cast<unsigned>(random_.below(program_.registers.size()));
            const Kind found = program_.registers[index];
            if (found == kind || (any_integer && found == 'R')) {
                return index;
            }
        }
    }

    std::string clean_name(Kind kind, std::size_t operand) const {
        return std::string("%clean") + kind + std::to_string(operand);
    }
    // Replaces every NaN of the operand by one canonical NaN; `name` becomes the register that has the result.
    std::string clean(Kind kind, std::size_t operand, std::string& name) const {
        const std::string type = kind == 'F' ? ".f32" : ".f64",
                          the_nan = kind == 'F' ? "0f7FFFFFFF" : "0d7FFFFFFFFFFFFFFF", to = clean_name(kind, operand);
        const std::string from = std::exchange(name, to);
        return "setp.nan" + type + " %nan, " + from + ", " + from + "; selp" + type + " " + to + ", " + the_nan + ", " +
               from + ", %nan;\n";
    }

    const Ingredient& choose(bool all_threads) {
        for (;;) {
            const Ingredient& one = ingredients_[random_.below(ingredients_.size())];
            if (!one.together || all_threads) {
                return one;
            }
        }
    }

    void instruction(const Ingredient& chosen) {
        const Instruction& what = chosen.instruction;
        Step step{&what, "", pick(what.result), {}};
        std::vector<std::string> operands;
        for (const Kind kind : what.operands) {
            step.operands.push_back(pick(kind));
            operands.push_back(name(step.operands.back()));
        }
        step.text = fill(what.text, name(step.result), operands);
        if (chosen.cleans_nans) {
            for (std::size_t i = 0; i < operands.size(); ++i) {
                if (is_floating(what.operands[i])) {
                    body_ += clean(what.operands[i], i, operands[i]);
                }
            }
        }
        // A guard equal to the result would also affect what is recorded.
        const unsigned guard = pick('p');
        const bool guarded = random_.chance(50), negated = random_.chance(50);
        std::string prefix;
        if (chosen.guardable && guarded && guard != step.result) {
            prefix = (negated ? "@!" : "@") + name(guard) + " ";
        }
        body_ += prefix + fill(what.text, name(step.result), operands) + "\n";
        write_down(prefix, step.result, chosen.through_memory);
        program_.steps.push_back(std::move(step));
    }

    // Records the raw bits: a conversion here could be folded with the instruction's own.
    void write_down(const std::string& prefix, unsigned result, bool read_back) {
        const Kind kind = program_.registers[result];
        body_ += prefix + "mov.u64 %word, " + std::to_string(program_.steps.size()) + ";\n" + prefix +
                 "st.global.u64 [%trace], %word;\n";
        if (kind == 'p') {
            body_ +=
                prefix + "selp.b32 %bit, 1, 0, " + name(result) + ";\n" + prefix + "st.global.b32 [%trace+8], %bit;\n";
        } else {
            body_ += prefix + "st.volatile.global" + bits_type(kind) + " [%trace+8], " + name(result) + ";\n";
            if (read_back) {
                body_ += "ld.volatile.global" + bits_type(kind) + " " + name(result) + ", [%trace+8];\n";
            }
        }
        body_ += prefix + "add.u64 %trace, %trace, 16;\n";
    }

    // `times`: an upper bound on how often this code runs.
    void block(unsigned count, unsigned times, unsigned depth) {
        for (unsigned i = 0; i < count; ++i) {
            if (records_ + times > kMaxRecords) {
                return;
            }
            if (depth < 3 && random_.chance(6)) {
                random_.chance(25) ? branch_by_index(times, depth) : branch(times, depth);
            } else if (depth < 3 && random_.chance(2)) {
                loop(times, depth);
            } else {
                instruction(choose(depth == 0));
                records_ += times;
            }
        }
    }

    void branch(unsigned times, unsigned depth) {
        const std::string label = std::to_string(labels_++);
        const bool has_else = random_.chance(50), negated = random_.chance(50);
        body_ += (negated ? "@!" : "@") + name(pick('p')) + " bra $else" + label + ";\n";
        block(static_cast<unsigned>(random_.below(10)) + 1, times, depth + 1);
        if (has_else) {
            body_ += "bra $end" + label + ";\n";
        }
        body_ += "$else" + label + ":\n";
        if (has_else) {
            block(static_cast<unsigned>(random_.below(10)) + 1, times, depth + 1);
            body_ += "$end" + label + ":\n";
        }
    }

    // One of three branches, or none.
    void branch_by_index(unsigned times, unsigned depth) {
        const std::string label = std::to_string(labels_++);
        const std::string end = "$end" + label;
        body_ += "and.b32 %bit, " + name(pick('R')) + ", 3;\n$ways" + label + ": .branchtargets $way" + label +
                 "_0, $way" + label + "_1, " + end + ", $way" + label + "_2;\nbrx.idx %bit, $ways" + label + ";\n";
        for (unsigned i = 0; i < 3; ++i) {
            body_ += "$way" + label + "_" + std::to_string(i) + ":\n";
            block(static_cast<unsigned>(random_.below(6)) + 1, times, depth + 1);
            if (i == 0) {
                body_ += "bra " + end + ";\n";  // the second falls through to the third
            }
        }
        body_ += end + ":\n";
    }

    // Each thread iterates one to four times.
    void loop(unsigned times, unsigned depth) {
        const std::string number = std::to_string(loops_++);
        body_ += "and.b32 %loop" + number + ", %index, 3;\n$loop" + number + ":\n";
        block(static_cast<unsigned>(random_.below(8)) + 1, times * 4, depth + 1);
        body_ += "setp.ne.u32 %again" + number + ", %loop" + number + ", 0; sub.u32 %loop" + number + ", %loop" +
                 number + ", 1;\n@%again" + number + " bra $loop" + number + ";\n";
    }

    Random random_;
    const std::vector<Ingredient>& ingredients_;
    Program program_;
    std::string body_;
    unsigned labels_ = 0, loops_ = 0, records_ = 0;
};

}  // namespace

Program random_program(std::uint64_t seed, const std::vector<Ingredient>& ingredients) {
    return Generator(seed, ingredients).generate();
}

std::uint64_t hash_records(const Program& program, const std::vector<std::uint64_t>& records) {
    std::uint64_t hash = 0;
    for (std::size_t thread = 0; thread < records.size(); thread += program.words_of_a_thread()) {
        for (std::size_t at = thread; at < thread + program.words_of_a_thread(); at += 2) {
            const std::uint64_t number = records[at];
            const bool is_step = number < program.steps.size();
            const std::uint64_t pair[] = {
                number,
                is_step ? canonical(program.steps[number].instruction->result, records[at + 1]) : records[at + 1]};
            hash = hash_bytes(pair, sizeof pair, hash);
            if (!is_step) {
                break;
            }
        }
    }
    return hash;
}

}  // namespace gpupool::differential
