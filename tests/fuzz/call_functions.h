// What the fuzz targets can do with each call that travels, by opcode. Derived from the call table, so a new line is
// known by itself; that no opcode which the worker serves is missing is checked all the same.
#pragma once

#include "tests/fuzz/command_builder.h"

namespace gpupool::fuzz {

struct CallFunctions {
    std::uint16_t opcode;
    Body (*build)(Input&);
    // Decodes a command; then, with what it holds as the caller's arguments, a reply.
    void (*decode)(std::span<std::byte> command, std::span<std::byte> reply);
};

std::span<const CallFunctions> call_functions();
const CallFunctions* call_function(std::uint16_t opcode);

// Ends the process when the worker serves an opcode that is not among them, or the other way round.
void require_all_opcodes();

}  // namespace gpupool::fuzz
