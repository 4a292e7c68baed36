// Converts f16 and bf16 to and from f32 bit by bit, in any rounding mode.
//
// Included by the ops_*.cpp files only. Threads, ownership: none.
#pragma once

#include "server/softgpu/exec/rounding.h"

namespace gpupool::softgpu::GPUPOOL_SOFTGPU_ISA {
namespace {

struct Half {
    std::uint16_t bits;
};
struct Bfloat {
    std::uint16_t bits;
};

// Multiplying corrects the exponent's bias, exactly even for subnormals. Infinities and NaN keep all exponent bits set.
[[gnu::always_inline]] inline float half_to_float(std::uint16_t bits) {
    const std::uint32_t magnitude = bits & 0x7FFFU;
    const std::uint32_t sign = (bits & 0x8000U) << 16;
    const auto scaled = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude << 13) * 0x1p112F);
    const std::uint32_t top = magnitude >= 0x7C00U ? 0x7F800000U | magnitude << 13 : scaled;
    return std::bit_cast<float>(sign | top);
}

inline double to_double(Half h) {
    return half_to_float(h.bits);
}

inline double to_double(Bfloat b) {
    return std::bit_cast<float>(std::uint32_t{b.bits} << 16);
}
inline double to_double(float f) {
    return f;
}
inline double to_double(double f) {
    return f;
}

// a * b + c of f16 or bf16 values. If the sum is inexact it is rounded to odd (to the neighbour with an odd last bit),
// so that rounding it to 16 bits gives the same as rounding the exact sum. The product is exact.
inline double fused_to_odd(double a, double b, double c) {
    const double product = a * b;
    const double sum = product + c;
    if (!std::isfinite(sum)) {
        return sum;
    }
    const double part = sum - product;
    const double lost = (product - (sum - part)) + (c - part);
    const auto bits = std::bit_cast<std::uint64_t>(sum);
    if (lost == 0 || (bits & 1) != 0) {
        return sum;
    }
    return std::bit_cast<double>((lost > 0) == (sum > 0) ? bits + 1 : bits - 1);
}

// Rounds a double once, to a format of `fraction_bits` with exponents from `lowest` to `highest`.
inline std::uint32_t encode(double value, Round round, int fraction_bits, int lowest, int highest, std::uint32_t nan) {
    const bool negative = std::signbit(value);
    const std::uint32_t sign = negative ? 1U << 15 : 0;
    const std::uint32_t infinity = static_cast<std::uint32_t>(highest - lowest + 2) << fraction_bits;
    if (value != value) {
        return nan;
    }
    double magnitude = std::fabs(value);
    if (std::isinf(magnitude)) {
        return sign | infinity;
    }
    if (magnitude == 0) {
        return sign;
    }
    int exponent = std::ilogb(magnitude);
    if (exponent < lowest) {
        exponent = lowest;
    }
    const double scaled = std::ldexp(magnitude, fraction_bits - exponent);  // exact, since doubles have enough bits
    double whole = std::floor(scaled);
    const double rest = scaled - whole;
    const bool up = round == Round::nearest ? rest > 0.5 || (rest == 0.5 && std::fmod(whole, 2) != 0)
                    : round == Round::zero  ? false
                    : round == Round::down  ? negative && rest > 0
                                            : !negative && rest > 0;
    if (up) {
        whole += 1;
    }
    // A carry out of the fraction increments the exponent.
    const auto units = static_cast<std::uint64_t>(whole);
    const std::uint64_t hidden = std::uint64_t{1} << fraction_bits;
    std::uint64_t bits =
        units < hidden ? units : units + (static_cast<std::uint64_t>(exponent - lowest) << fraction_bits);
    if (bits >= infinity) {
        const bool stays_finite =
            round == Round::zero || (round == Round::down && !negative) || (round == Round::up && negative);
        bits = stays_finite ? infinity - 1 : infinity;
    }
    return sign | static_cast<std::uint32_t>(bits);
}

inline Half to_half(double value, Round round = Round::nearest) {
    return {static_cast<std::uint16_t>(encode(value, round, 10, -14, 15, 0x7FFF))};
}
inline Bfloat to_bfloat(double value, Round round = Round::nearest) {
    return {static_cast<std::uint16_t>(encode(value, round, 7, -126, 127, 0x7FFF))};
}

}  // namespace
}  // namespace gpupool::softgpu::GPUPOOL_SOFTGPU_ISA
