// The functions of the fuzz targets for each remote call, by opcode. They are derived from the call table, so new lines
// are covered automatically; a check compares them with the opcodes that the worker serves.
#pragma once

#include "tests/fuzz/command_builder.h"

namespace gpupool::fuzz {

struct CallFunctions {
    std::uint16_t opcode;
    Body (*build)(Input&);
    // Decodes a command; then, with the decoded arguments as the caller's, a reply.
    void (*decode)(std::span<std::byte> command, std::span<std::byte> reply);
};

std::span<const CallFunctions> call_functions();
const CallFunctions* call_function(std::uint16_t opcode);

// Ends the process when these opcodes and those that the worker serves differ.
void require_all_opcodes();

}  // namespace gpupool::fuzz
