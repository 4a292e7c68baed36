// SHA-256's inner function by the processor's own instructions, where it has them (x86 SHA extensions): some six times
// as fast as in plain C++, which code images of many megabytes are worth.
//
// Ownership: none. Threads: any. Errors: none.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpupool {

bool sha256_in_hardware() noexcept;

// Takes `count` blocks of 64 bytes into `state` (its eight words, as FIPS 180-4 names them a to h). Only where
// sha256_in_hardware().
void sha256_blocks(std::uint32_t* state, const std::byte* data, std::size_t count) noexcept;

}  // namespace gpupool
