// Rounds towards zero, down or up during a scope of SSE arithmetic, and implements f32's flush and NaN rules.
//
// Included by the ops_*.cpp files only, in the namespace of their instruction set. Threads: changes the calling
// thread's MXCSR and restores it.
#pragma once

#include <xmmintrin.h>

#include <cmath>

#include "server/softgpu/exec/lanes.h"

namespace gpupool::softgpu::GPUPOOL_SOFTGPU_ISA {
namespace {

enum class Round : std::uint8_t { nearest, zero, down, up };

class ScopedRounding {
  public:
    explicit ScopedRounding(Round round) noexcept : saved_(_mm_getcsr()) {
        static constexpr unsigned kBits[] = {_MM_ROUND_NEAREST, _MM_ROUND_TOWARD_ZERO, _MM_ROUND_DOWN, _MM_ROUND_UP};
        _mm_setcsr((saved_ & ~static_cast<unsigned>(_MM_ROUND_MASK)) | kBits[static_cast<int>(round)]);
    }
    ~ScopedRounding() { _mm_setcsr(saved_); }
    ScopedRounding(const ScopedRounding&) = delete;
    ScopedRounding& operator=(const ScopedRounding&) = delete;

  private:
    unsigned saved_;
};

// Keeps the compiler from moving arithmetic across a change of the rounding mode.
template <class T>
[[gnu::always_inline]] inline T opaque(T value) noexcept {
    asm volatile("" : "+x"(value));
    return value;
}

// A GPU has one f32 NaN. It has all f64 NaNs: an operation returns its NaN operand, made quiet.
[[gnu::always_inline]] inline float canonical(float value) noexcept {
    return value != value ? std::bit_cast<float>(0x7FFFFFFFU) : value;
}
[[gnu::always_inline]] inline double canonical(double value) noexcept {
    return value;
}

// Makes a NaN quiet.
template <class T>
[[gnu::always_inline]] inline T quiet(T value) noexcept {
    return value + value;
}

[[gnu::always_inline]] inline float flush(float value) noexcept {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    return (bits & 0x7F800000U) == 0 ? std::bit_cast<float>(bits & 0x80000000U) : value;
}

// NaN saturates to +0.
template <class T>
[[gnu::always_inline]] inline T saturate_unit(T value) noexcept {
    return value > T{0} ? (value < T{1} ? value : T{1}) : T{0};
}

template <class T, bool Ftz>
[[gnu::always_inline]] inline T input(T value) noexcept {
    if constexpr (Ftz) {
        return flush(value);
    }
    return value;
}

template <class T, bool Ftz, bool Sat>
[[gnu::always_inline]] inline T output(T value) noexcept {
    value = canonical(value);
    if constexpr (Ftz) {
        value = flush(value);
    }
    if constexpr (Sat) {
        value = saturate_unit(value);
    }
    return value;
}

}  // namespace
}  // namespace gpupool::softgpu::GPUPOOL_SOFTGPU_ISA
