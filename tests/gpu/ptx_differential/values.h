// The tested values, and the comparison of two results.
//
// Units: values are bits in the low end of a word. Threads: one thread per Random. Errors: none.
#pragma once

#include "tests/gpu/ptx_differential/instructions.h"

namespace gpupool::differential {

class Random {
  public:
    explicit Random(std::uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15ULL + 1) {}
    std::uint64_t next();
    std::uint64_t below(std::uint64_t limit) { return next() % limit; }
    bool chance(unsigned percent) { return below(100) < percent; }

  private:
    std::uint64_t state_;
};

std::uint64_t hash_bytes(const void* data, std::size_t bytes, std::uint64_t so_far = 0xCBF29CE484222325ULL);

// Boundary values of the kind, and random ones.
std::uint64_t random_value(Kind kind, Random& random);

enum class Verdict : std::uint8_t { equal, other_nan, outside, different };
// `outside`: they differ where PTX gives no bound (for an approximation). `operands` are the bits that both received.
Verdict compare(const Instruction& instruction, const std::uint64_t* operands, std::uint64_t native,
                std::uint64_t software);

// Replaces every NaN of the kind by one, for hashes.
std::uint64_t canonical(Kind kind, std::uint64_t bits);

}  // namespace gpupool::differential
