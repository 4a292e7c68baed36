// Rounding to whole steps: pages, alignments, allocation units.
//
// Threads: any. Errors: none; a value within `step` of the largest one wraps around.
#pragma once

#include <cstdint>

namespace gpupool {

// The least multiple of `step` that is not less than `value`.
constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t step) {
    return (value + step - 1) / step * step;
}

}  // namespace gpupool
