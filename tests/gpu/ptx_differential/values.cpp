#include "tests/gpu/ptx_differential/values.h"

#include <algorithm>
#include <cmath>

namespace gpupool::differential {
namespace {

// The layout of a floating point format.
struct Format {
    unsigned bits, fraction;
    std::uint64_t sign() const { return std::uint64_t{1} << (bits - 1); }
    std::uint64_t infinity() const { return (sign() - 1) & ~((std::uint64_t{1} << fraction) - 1); }
    int bias() const { return (1 << (bits - fraction - 2)) - 1; }
    bool is_nan(std::uint64_t value) const { return (value & (sign() - 1)) > infinity(); }
};

// The format of one element; x and y hold two.
Format format_of(Kind kind) {
    switch (kind) {
        case 'h':
        case 'x': return {16, 10};
        case 'b':
        case 'y': return {16, 7};
        case 'F': return {32, 23};
        default: return {64, 52};
    }
}

double to_double(const Format& format, std::uint64_t bits) {
    const std::uint64_t magnitude = bits & (format.sign() - 1);
    const double sign = (bits & format.sign()) != 0 ? -1 : 1;
    if (magnitude == format.infinity()) {
        return sign * INFINITY;
    }
    if (magnitude > format.infinity()) {
        return NAN;
    }
    const std::uint64_t fraction = magnitude & ((std::uint64_t{1} << format.fraction) - 1);
    const int exponent = static_cast<int>(magnitude >> format.fraction);
    const double significand = exponent == 0 ? static_cast<double>(fraction)
                                             : static_cast<double>(fraction | (std::uint64_t{1} << format.fraction));
    return sign *
           std::ldexp(significand, (exponent == 0 ? 1 : exponent) - format.bias() - static_cast<int>(format.fraction));
}

std::uint64_t random_element(const Format& format, Random& random) {
    const std::uint64_t one = static_cast<std::uint64_t>(format.bias()) << format.fraction;
    const std::uint64_t unit = std::uint64_t{1} << format.fraction;
    const std::uint64_t sign = random.chance(50) ? format.sign() : 0;
    const std::uint64_t fraction = random.next() & (unit - 1);
    const std::uint64_t borders[] = {0,
                                     1,
                                     unit - 1,
                                     unit,
                                     unit + 1,
                                     one,
                                     one - 1,
                                     one + 1,
                                     one + unit,
                                     one - unit,
                                     format.infinity() - 1,
                                     format.infinity(),
                                     format.infinity() | (unit >> 1),
                                     format.infinity() | 1,
                                     format.infinity() | fraction,
                                     (unit >> 1) | fraction,
                                     fraction};
    if (random.chance(20)) {
        return sign | borders[random.below(sizeof borders / sizeof *borders)];
    }
    if (random.chance(10)) {
        return random.next() & (2 * format.sign() - 1);
    }
    if (random.chance(20)) {  // near the limits of the integer types
        const auto power = random.below(66);
        const auto exponent = static_cast<std::uint64_t>(format.bias()) + power;
        if (exponent << format.fraction >= format.infinity()) {
            return sign | fraction;
        }
        const std::uint64_t near = random.chance(50) ? random.below(3) : unit - 1 - random.below(3);
        return sign | (exponent << format.fraction) | near;
    }
    if (random.chance(20)) {  // small multiples of a half: ties
        const auto k = random.below(64) + 1;
        const unsigned top = 63 - static_cast<unsigned>(__builtin_clzll(k));
        const auto exponent = static_cast<std::uint64_t>(format.bias()) + top - 1;
        const std::uint64_t rest = format.fraction >= top ? (k << (format.fraction - top)) & (unit - 1) : 0;
        return sign | (exponent << format.fraction) | rest;
    }
    // Magnitudes that are usual in arithmetic.
    const auto exponent = static_cast<std::uint64_t>(format.bias()) + random.below(21) - 10;
    return sign | (exponent << format.fraction) | fraction;
}

std::uint64_t random_integer(unsigned bits, Random& random) {
    const std::uint64_t mask = bits == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << bits) - 1;
    const std::uint64_t top = std::uint64_t{1} << (bits - 1);
    const std::uint64_t borders[] = {0,
                                     1,
                                     2,
                                     3,
                                     mask,
                                     mask - 1,
                                     top,
                                     top - 1,
                                     top + 1,
                                     0x7F,
                                     0x80,
                                     0xFF,
                                     0x100,
                                     0x7FFF,
                                     0x8000,
                                     0xFFFF,
                                     0x10000,
                                     0xFFFFFF,
                                     0x1000000,
                                     0x5555555555555555,
                                     0xAAAAAAAAAAAAAAAA};
    if (random.chance(25)) {
        return borders[random.below(sizeof borders / sizeof *borders)] & mask;
    }
    if (random.chance(20)) {
        return (random.below(41) - 20) & mask;
    }
    if (random.chance(25)) {
        return (random.next() >> random.below(64)) & mask;
    }
    if (random.chance(10)) {
        const std::uint64_t power = std::uint64_t{1} << random.below(bits);
        return (power - random.below(2)) & mask;
    }
    return random.next() & mask;
}

Verdict compare_element(const Format& format, const Tolerance& tolerance, std::uint64_t first, std::uint64_t second,
                        std::uint64_t native, std::uint64_t software) {
    if (native == software) {
        return Verdict::equal;
    }
    const bool native_nan = format.is_nan(native), software_nan = format.is_nan(software);
    if (native_nan && software_nan) {
        return Verdict::other_nan;
    }
    if (tolerance.rule == Tolerance::Rule::exact) {
        return Verdict::different;
    }
    if (tolerance.domain_most != 0) {
        const double magnitude = std::fabs(to_double(format, tolerance.domain_of_second ? second : first));
        if (!(magnitude >= tolerance.domain_least && magnitude <= tolerance.domain_most)) {
            return Verdict::outside;
        }
    }
    if (native_nan || software_nan) {
        return Verdict::different;
    }
    const double a = to_double(format, native), b = to_double(format, software);
    if (std::isinf(a) || std::isinf(b)) {
        return Verdict::different;
    }
    const double error = std::fabs(a - b);
    // Denormal results have fewer digits than the bound assumes.
    const double smallest = std::ldexp(1.0, 2 - format.bias() - static_cast<int>(format.fraction));
    const bool relative = error <= tolerance.bound * std::fabs(a) || error <= smallest;
    const bool absolute = error <= tolerance.bound;
    const bool held = tolerance.rule == Tolerance::Rule::relative   ? relative
                      : tolerance.rule == Tolerance::Rule::absolute ? absolute
                                                                    : relative || absolute;
    return held ? Verdict::equal : Verdict::different;
}

unsigned elements_of(Kind kind) {
    return kind == 'x' || kind == 'y' ? 2 : 1;
}

std::uint64_t element(std::uint64_t bits, unsigned index, const Format& format) {
    return format.bits == 64 ? bits : (bits >> (index * format.bits)) & ((std::uint64_t{1} << format.bits) - 1);
}

}  // namespace

std::uint64_t Random::next() {
    // splitmix64
    std::uint64_t z = (state_ += 0x9E3779B97F4A7C15ULL);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
}

std::uint64_t hash_bytes(const void* data, std::size_t bytes, std::uint64_t so_far) {
    // FNV-1a
    const auto* at = static_cast<const unsigned char*>(data);
    for (std::size_t i = 0; i < bytes; ++i) {
        so_far = (so_far ^ at[i]) * 0x100000001B3ULL;
    }
    return so_far;
}

std::uint64_t random_value(Kind kind, Random& random) {
    if (kind == 'p') {
        return random.below(2);
    }
    if (kind == 'S') {
        return random.chance(80) ? random.below(72) : random_integer(32, random);
    }
    if (!is_floating(kind)) {
        return random_integer(width_bits(kind), random);
    }
    const Format format = format_of(kind);
    std::uint64_t value = random_element(format, random);
    if (elements_of(kind) == 2) {
        value |= random_element(format, random) << 16;
    }
    return value;
}

Verdict compare(const Instruction& instruction, const std::uint64_t* operands, std::uint64_t native,
                std::uint64_t software) {
    if (native == software) {
        return Verdict::equal;
    }
    if (!is_floating(instruction.result)) {
        return Verdict::different;
    }
    const Format format = format_of(instruction.result);
    Verdict worst = Verdict::equal;
    for (unsigned i = 0; i < elements_of(instruction.result); ++i) {
        const Verdict verdict =
            compare_element(format, instruction.tolerance, element(operands[0], i, format),
                            element(operands[1], i, format), element(native, i, format), element(software, i, format));
        worst = std::max(worst, verdict);
    }
    return worst;
}

std::uint64_t canonical(Kind kind, std::uint64_t bits) {
    if (!is_floating(kind)) {
        return bits;
    }
    const Format format = format_of(kind);
    std::uint64_t result = bits;
    for (unsigned i = 0; i < elements_of(kind); ++i) {
        if (!format.is_nan(element(bits, i, format))) {
            continue;
        }
        const std::uint64_t ones = format.bits == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << format.bits) - 1;
        result |= ones << (i * format.bits);
    }
    return result;
}

}  // namespace gpupool::differential
