#include "tests/gpu/ptx_differential/kernels.h"

namespace gpupool::differential {
namespace {

const char* register_type(Kind kind) {
    switch (width_bits(kind)) {
        case 1: return ".pred";
        case 16: return ".b16";
        case 32: return ".b32";
        default: return ".b64";
    }
}

// Moves a 64-bit register's content to a register of this kind.
std::string take(Kind kind, const std::string& to, const std::string& word) {
    if (kind == 'p') {
        return "and.b64 " + word + ", " + word + ", 1; setp.ne.u64 " + to + ", " + word + ", 0;\n";
    }
    if (width_bits(kind) == 64) {
        return "mov.b64 " + to + ", " + word + ";\n";
    }
    return "cvt.u" + std::to_string(width_bits(kind)) + ".u64 " + to + ", " + word + ";\n";
}
std::string give(Kind kind, const std::string& word, const std::string& from) {
    if (kind == 'p') {
        return "selp.u64 " + word + ", 1, 0, " + from + ";";
    }
    if (width_bits(kind) == 64) {
        return "mov.b64 " + word + ", " + from + ";";
    }
    return "cvt.u64.u" + std::to_string(width_bits(kind)) + " " + word + ", " + from + ";";
}

}  // namespace

std::string module_header() {
    return ".version 8.1\n.target sm_90\n.address_size 64\n";
}

std::string thread_index() {
    return "mov.u32 %index, %ctaid.x; mov.u32 %size, %ntid.x; mul.lo.u32 %index, %index, %size;\n"
           "mov.u32 %size, %tid.x; add.u32 %index, %index, %size;\n";
}

std::string instruction_kernel(const std::string& name, const Instruction& instruction) {
    std::string text =
        ".visible .entry " + name + "(.param .u64 in, .param .u64 out, .param .u32 count) {\n" +
        ".reg .b32 %index, %size, %count; .reg .b64 %input, %output, %word, %offset; .reg .pred %outside;\n" +
        thread_index() + "ld.param.u32 %count, [count]; setp.ge.u32 %outside, %index, %count; @%outside ret;\n" +
        "ld.param.u64 %input, [in]; ld.param.u64 %output, [out];\n" + "mul.wide.u32 %offset, %index, " +
        std::to_string(kOperandWords * 8) + "; add.u64 %input, %input, %offset;\n" +
        "mul.wide.u32 %offset, %index, 8; add.u64 %output, %output, %offset;\n";
    std::vector<std::string> operands;
    for (std::size_t i = 0; i < instruction.operands.size(); ++i) {
        const Kind kind = instruction.operands[i];
        operands.push_back("%v" + std::to_string(i));
        text += std::string(".reg ") + register_type(kind) + " " + operands.back() +
                ";\nld.global.u64 %word, [%input+" + std::to_string(i * 8) + "]; " +
                take(kind, operands.back(), "%word");
    }
    // Instructions that write only a part of the result begin with zero.
    text += std::string(".reg ") + register_type(instruction.result) + " %d;\n";
    if (instruction.result != 'p') {
        text += std::string("mov") + register_type(instruction.result) + " %d, 0;\n";
    }
    text += fill(instruction.text, "%d", operands) + "\n" + give(instruction.result, "%word", "%d") +
            "\nst.global.u64 [%output], %word;\nret;\n}\n";
    return text;
}

}  // namespace gpupool::differential
