#include "tests/gpu/ptx_differential/kernels.h"

namespace gpupool::differential {
namespace {

constexpr unsigned registers_of_a_kind = 5;
constexpr unsigned instructions_of_a_program = 150;
constexpr unsigned most_records = 600;
const std::string program_kinds = "HRLShbFDxyp";

const char* register_type(Kind kind) {
    switch (width_bits(kind)) {
        case 1: return ".pred";
        case 16: return ".b16";
        case 32: return ".b32";
        default: return ".b64";
    }
}

// From a 64-bit register into one of the kind, and back.
std::string take(Kind kind, const std::string& to, const std::string& word) {
    if (kind == 'p') return "and.b64 " + word + ", " + word + ", 1; setp.ne.u64 " + to + ", " + word + ", 0;\n";
    if (width_bits(kind) == 64) return "mov.b64 " + to + ", " + word + ";\n";
    return "cvt.u" + std::to_string(width_bits(kind)) + ".u64 " + to + ", " + word + ";\n";
}
std::string give(Kind kind, const std::string& word, const std::string& from) {
    if (kind == 'p') return "selp.u64 " + word + ", 1, 0, " + from + ";";
    if (width_bits(kind) == 64) return "mov.b64 " + word + ", " + from + ";";
    return "cvt.u64.u" + std::to_string(width_bits(kind)) + " " + word + ", " + from + ";";
}

class Generator {
  public:
    Generator(std::uint64_t seed, const std::vector<Instruction>& instructions)
        : random_(seed), instructions_(instructions) {
        for (const Kind kind : program_kinds) {
            for (unsigned i = 0; i < registers_of_a_kind; ++i) program_.registers.push_back(kind);
        }
    }

    Program generate() {
        block(instructions_of_a_program, 1, 0);
        std::string& text = program_.text;
        text = module_header() + ".visible .entry program(.param .u64 in, .param .u64 out) {\n" +
               ".reg .b32 %index, %size; .reg .b64 %input, %trace, %word, %offset;\n";
        for (unsigned i = 0; i < program_.registers.size(); ++i)
            text += std::string(".reg ") + register_type(program_.registers[i]) + " " + name(i) + ";\n";
        for (unsigned i = 0; i < loops_; ++i)
            text += ".reg .b32 %loop" + std::to_string(i) + "; .reg .pred %again" + std::to_string(i) + ";\n";
        program_.most_records = records_ + 1;
        text +=
            "mov.u32 %index, %ctaid.x; mov.u32 %size, %ntid.x; mul.lo.u32 %index, %index, %size;\n"
            "mov.u32 %size, %tid.x; add.u32 %index, %index, %size;\n"
            "ld.param.u64 %input, [in]; ld.param.u64 %trace, [out];\n"
            "mul.wide.u32 %offset, %index, " +
            std::to_string(program_.registers.size() * 8) +
            "; add.u64 %input, %input, %offset;\n"
            "mul.wide.u32 %offset, %index, " +
            std::to_string(program_.most_records * 16) + "; add.u64 %trace, %trace, %offset;\n";
        for (unsigned i = 0; i < program_.registers.size(); ++i)
            text += "ld.global.u64 %word, [%input+" + std::to_string(i * 8) + "]; " +
                    take(program_.registers[i], name(i), "%word");
        text += body_ + "mov.u64 %word, " + std::to_string(last_record) + "; st.global.u64 [%trace], %word;\nret;\n}\n";
        return std::move(program_);
    }

  private:
    std::string name(unsigned index) const { return "%v" + std::to_string(index); }

    // A register of the kind; now and then one that holds another kind of as many bits.
    unsigned pick(Kind kind) {
        const bool any = kind != 'p' && random_.chance(10);
        for (;;) {
            const auto index = static_cast<unsigned>(random_.below(program_.registers.size()));
            const Kind found = program_.registers[index];
            if (found == kind || (any && width_bits(found) == width_bits(kind))) return index;
        }
    }

    void instruction() {
        const Instruction* chosen = nullptr;
        do {
            chosen = &instructions_[random_.below(instructions_.size())];
        } while (chosen->tolerance.rule != Tolerance::Rule::exact);
        Step step{chosen, "", pick(chosen->result), {}};
        std::vector<std::string> operands;
        for (const Kind kind : chosen->operands) {
            step.operands.push_back(pick(kind));
            operands.push_back(name(step.operands.back()));
        }
        step.text = fill(chosen->text, name(step.result), operands);
        // A predicate of its own result would also decide what is written down.
        const unsigned guard = pick('p');
        const bool guarded = chosen->text[0] != '{' && guard != step.result && random_.chance(15);
        const std::string prefix = guarded ? (random_.chance(50) ? "@" : "@!") + name(guard) + " " : "";
        body_ += prefix + step.text + "\n" + prefix + "mov.u64 %word, " + std::to_string(program_.steps.size()) +
                 ";\n" + prefix + "st.global.u64 [%trace], %word;\n";
        const std::string value = give(chosen->result, "%word", name(step.result));
        body_ += prefix + value + "\n" + prefix + "st.global.u64 [%trace+8], %word;\n" + prefix +
                 "add.u64 %trace, %trace, 16;\n";
        program_.steps.push_back(std::move(step));
    }

    // `times`: how often this place runs at most.
    void block(unsigned count, unsigned times, unsigned depth) {
        for (unsigned i = 0; i < count; ++i) {
            if (records_ + times > most_records) return;
            if (depth < 3 && random_.chance(6)) {
                branch(times, depth);
            } else if (depth < 3 && random_.chance(2)) {
                loop(times, depth);
            } else {
                instruction();
                records_ += times;
            }
        }
    }

    void branch(unsigned times, unsigned depth) {
        const std::string label = std::to_string(labels_++);
        const bool has_else = random_.chance(50);
        body_ += std::string(random_.chance(50) ? "@" : "@!") + name(pick('p')) + " bra $else" + label + ";\n";
        block(static_cast<unsigned>(random_.below(10)) + 1, times, depth + 1);
        if (has_else) body_ += "bra $end" + label + ";\n";
        body_ += "$else" + label + ":\n";
        if (has_else) {
            block(static_cast<unsigned>(random_.below(10)) + 1, times, depth + 1);
            body_ += "$end" + label + ":\n";
        }
    }

    // Each thread goes round one to four times.
    void loop(unsigned times, unsigned depth) {
        const std::string number = std::to_string(loops_++);
        body_ += "and.b32 %loop" + number + ", %index, 3;\n$loop" + number + ":\n";
        block(static_cast<unsigned>(random_.below(8)) + 1, times * 4, depth + 1);
        body_ += "setp.ne.u32 %again" + number + ", %loop" + number + ", 0; sub.u32 %loop" + number + ", %loop" +
                 number + ", 1;\n@%again" + number + " bra $loop" + number + ";\n";
    }

    Random random_;
    const std::vector<Instruction>& instructions_;
    Program program_;
    std::string body_;
    unsigned labels_ = 0, loops_ = 0, records_ = 0;
};

}  // namespace

std::string module_header() {
    return ".version 8.1\n.target sm_90\n.address_size 64\n";
}

std::string instruction_kernel(const std::string& name, const Instruction& instruction) {
    std::string text =
        ".visible .entry " + name + "(.param .u64 in, .param .u64 out, .param .u32 count) {\n" +
        ".reg .b32 %index, %size, %count; .reg .b64 %input, %output, %word, %offset; .reg .pred %outside;\n" +
        "mov.u32 %index, %ctaid.x; mov.u32 %size, %ntid.x; mul.lo.u32 %index, %index, %size;\n" +
        "mov.u32 %size, %tid.x; add.u32 %index, %index, %size;\n" +
        "ld.param.u32 %count, [count]; setp.ge.u32 %outside, %index, %count; @%outside ret;\n" +
        "ld.param.u64 %input, [in]; ld.param.u64 %output, [out];\n" + "mul.wide.u32 %offset, %index, " +
        std::to_string(operand_words * 8) + "; add.u64 %input, %input, %offset;\n" +
        "mul.wide.u32 %offset, %index, 8; add.u64 %output, %output, %offset;\n";
    std::vector<std::string> operands;
    for (std::size_t i = 0; i < instruction.operands.size(); ++i) {
        const Kind kind = instruction.operands[i];
        operands.push_back("%v" + std::to_string(i));
        text += std::string(".reg ") + register_type(kind) + " " + operands.back() +
                ";\nld.global.u64 %word, [%input+" + std::to_string(i * 8) + "]; " +
                take(kind, operands.back(), "%word");
    }
    // Merges of a part of the result begin with zero.
    text += std::string(".reg ") + register_type(instruction.result) + " %d;\n";
    if (instruction.result != 'p') text += std::string("mov") + register_type(instruction.result) + " %d, 0;\n";
    text += fill(instruction.text, "%d", operands) + "\n" + give(instruction.result, "%word", "%d") +
            "\nst.global.u64 [%output], %word;\nret;\n}\n";
    return text;
}

Program random_program(std::uint64_t seed, const std::vector<Instruction>& instructions) {
    return Generator(seed, instructions).generate();
}

}  // namespace gpupool::differential
