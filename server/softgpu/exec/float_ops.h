// Arithmetic that f32 and f64 share, with rounding modes, flushing and saturation. Included by ops_float32.cpp and
// ops_float64.cpp only.
//
// Threads, ownership: none.
#pragma once

#include "server/softgpu/exec/rounding.h"

namespace gpupool::softgpu::GPUPOOL_SOFTGPU_ISA {
namespace {

struct Add {
    template <class T>
    T operator()(T a, T b) const {
        return a + b;
    }
};
struct Subtract {
    template <class T>
    T operator()(T a, T b) const {
        return a - b;
    }
};
struct Multiply {
    template <class T>
    T operator()(T a, T b) const {
        return a * b;
    }
};
struct Divide {
    template <class T>
    T operator()(T a, T b) const {
        return a / b;
    }
};

// If several f64 operands are NaN, a GPU returns the second one; else fma's third; else the first. C++ does not specify
// which one arithmetic returns.
[[gnu::always_inline]] inline float keep_nan(float result, float) {
    return result;  // output() makes it the canonical NaN
}
[[gnu::always_inline]] inline double keep_nan(double result, double operand) {
    return operand != operand ? quiet(operand) : result;
}

template <class F, class T>
[[gnu::always_inline]] inline T with_nan(T result, T b) {
    if constexpr (std::is_same_v<F, Divide>) {
        return result;
    }
    return keep_nan(result, b);
}

// A GPU with .ftz flushes a result that would be below the least normal number if it were rounded with an unlimited
// exponent range, even if normal rounding gives the least normal number. These functions detect that case by scaling
// the operands.
[[gnu::always_inline]] inline bool is_least_normal(float value) {
    return (std::bit_cast<std::uint32_t>(value) & 0x7FFFFFFFU) == 0x00800000U;
}

constexpr float kSubnormalScale = 0x1p64F;
inline bool is_below_normal(float scaled) {
    return std::fabs(scaled) < 0x1p-126F * kSubnormalScale;
}
template <class F>
bool was_subnormal(float x, float y) {
    // The smaller factor, or the dividend, can be scaled without overflow, since the result is near the least normal
    // number.
    if constexpr (std::is_same_v<F, Multiply>) {
        const bool x_is_smaller = std::fabs(x) < std::fabs(y);
        return is_below_normal(opaque((x_is_smaller ? x : y) * kSubnormalScale) * (x_is_smaller ? y : x));
    }
    if constexpr (std::is_same_v<F, Divide>) {
        return is_below_normal(opaque(x * kSubnormalScale) / y);
    }
    return false;  // a subnormal sum is exact
}
inline bool was_subnormal(float x, float y, float z) {
    const bool x_is_smaller = std::fabs(x) < std::fabs(y);
    return is_below_normal(opaque(__builtin_fmaf(opaque((x_is_smaller ? x : y) * kSubnormalScale), x_is_smaller ? y : x,
                                                 opaque(z * kSubnormalScale))));
}

template <class F, bool Ftz>
constexpr bool can_round_to_normal = Ftz && (std::is_same_v<F, Multiply> || std::is_same_v<F, Divide>);

// A lane's result after .ftz and before .sat.
template <class T, class F, bool Ftz>
T rounded_result(T x, T y, T result) {
    if constexpr (can_round_to_normal<F, Ftz>) {
        if (is_least_normal(result) && was_subnormal<F>(x, y)) {
            return std::copysign(T{0}, result);
        }
    }
    return result;
}
template <class T, bool Ftz>
T rounded_sum(T x, T y, T z, T result) {
    if constexpr (Ftz) {
        if (is_least_normal(result) && was_subnormal(x, y, z)) {
            return std::copysign(T{0}, result);
        }
    }
    return result;
}

// Computes all lanes in a loop that vectorises. Then corrects with `correct` the lanes whose result is the least normal
// number, which is rare.
template <class T, class Compute, class Correct, class Finish>
[[gnu::always_inline]] inline void each_flushed(std::uint32_t exec, Compute compute, Correct correct, Finish finish) {
    alignas(64) T results[kLaneCount] = {};
    T* const r = results;
    each_lane(exec, [=](std::uint32_t l) { r[l] = compute(l); });
    const std::uint32_t least = lane_mask([=](std::uint32_t l) { return is_least_normal(r[l]); });
    for (std::uint32_t rest = least; rest != 0; rest &= rest - 1) {
        const auto l = static_cast<std::uint32_t>(std::countr_zero(rest));
        r[l] = correct(l, r[l]);
    }
    each_lane(exec, [=](std::uint32_t l) { finish(l, r[l]); });
}

// Computes the lanes one by one with rounding mode R. `compute` hides operands and result from the compiler (opaque()),
// which would otherwise move the computation out of the mode.
template <Round R, class Compute>
[[gnu::always_inline]] inline void each_rounded(std::uint32_t exec, Compute compute) {
    const ScopedRounding rounding(R);
    for (std::uint32_t rest = exec; rest != 0; rest &= rest - 1) {
        compute(static_cast<std::uint32_t>(std::countr_zero(rest)));
    }
}

template <class T, class F, Round R, bool Ftz, bool Sat>
void run_float_binary(Warp& w, const Inst& i) {
    T* d = w.reg<T>(i.d);
    const T* a = w.reg<T>(i.a);
    const T* b = w.reg<T>(i.b);
    if constexpr (R == Round::nearest && can_round_to_normal<F, Ftz>) {
        each_flushed<T>(
            w.exec, [=](std::uint32_t l) { return F{}(flush(a[l]), flush(b[l])); },
            [=](std::uint32_t l, T r) { return rounded_result<T, F, Ftz>(flush(a[l]), flush(b[l]), r); },
            [=](std::uint32_t l, T r) { d[l] = output<T, Ftz, Sat>(r); });
    } else if constexpr (R == Round::nearest) {
        each_lane(w.exec, [=](std::uint32_t l) {
            const T x = input<T, Ftz>(a[l]), y = input<T, Ftz>(b[l]);
            d[l] = output<T, Ftz, Sat>(with_nan<F>(F{}(x, y), y));
        });
    } else {
        each_rounded<R>(w.exec, [=](std::uint32_t l) {
            const T x = opaque(input<T, Ftz>(a[l]));
            const T y = opaque(input<T, Ftz>(b[l]));
            d[l] = output<T, Ftz, Sat>(with_nan<F>(rounded_result<T, F, Ftz>(x, y, opaque(F{}(x, y))), y));
        });
    }
}

[[gnu::always_inline]] inline float fused(float a, float b, float c) {
    return __builtin_fmaf(a, b, c);
}
[[gnu::always_inline]] inline double fused(double a, double b, double c) {
    return __builtin_fma(a, b, c);
}

template <class T, Round R, bool Ftz, bool Sat>
void run_fma(Warp& w, const Inst& i) {
    T* d = w.reg<T>(i.d);
    const T* a = w.reg<T>(i.a);
    const T* b = w.reg<T>(i.b);
    const T* c = w.reg<T>(i.c);
    if constexpr (R == Round::nearest && Ftz) {
        each_flushed<T>(
            w.exec, [=](std::uint32_t l) { return fused(flush(a[l]), flush(b[l]), flush(c[l])); },
            [=](std::uint32_t l, T r) { return rounded_sum<T, Ftz>(flush(a[l]), flush(b[l]), flush(c[l]), r); },
            [=](std::uint32_t l, T r) { d[l] = output<T, Ftz, Sat>(r); });
    } else if constexpr (R == Round::nearest) {
        each_lane(w.exec, [=](std::uint32_t l) {
            const T x = input<T, Ftz>(a[l]), y = input<T, Ftz>(b[l]), z = input<T, Ftz>(c[l]);
            d[l] = output<T, Ftz, Sat>(keep_nan(keep_nan(fused(x, y, z), z), y));
        });
    } else {
        each_rounded<R>(w.exec, [=](std::uint32_t l) {
            const T x = opaque(input<T, Ftz>(a[l]));
            const T y = opaque(input<T, Ftz>(b[l]));
            const T z = opaque(input<T, Ftz>(c[l]));
            d[l] = output<T, Ftz, Sat>(keep_nan(keep_nan(rounded_sum<T, Ftz>(x, y, z, opaque(fused(x, y, z))), z), y));
        });
    }
}

template <class T, Round R, bool Ftz>
void run_sqrt(Warp& w, const Inst& i) {
    T* d = w.reg<T>(i.d);
    const T* a = w.reg<T>(i.a);
    each_rounded<R>(
        w.exec, [=](std::uint32_t l) { d[l] = output<T, Ftz, false>(opaque(std::sqrt(opaque(input<T, Ftz>(a[l]))))); });
}

template <class T, Round R, bool Ftz>
void run_rcp(Warp& w, const Inst& i) {
    T* d = w.reg<T>(i.d);
    const T* a = w.reg<T>(i.a);
    each_rounded<R>(w.exec, [=](std::uint32_t l) {
        const T x = opaque(input<T, Ftz>(a[l]));
        d[l] = output<T, Ftz, false>(rounded_result<T, Divide, Ftz>(T{1}, x, opaque(T{1} / x)));
    });
}

template <class T>
Op op1(OpFn fn) {
    return {fn, slot_of<T>(), {slot_of<T>()}};
}
template <class T>
Op op2(OpFn fn) {
    return {fn, slot_of<T>(), {slot_of<T>(), slot_of<T>()}};
}
template <class T>
Op op3(OpFn fn) {
    return {fn, slot_of<T>(), {slot_of<T>(), slot_of<T>(), slot_of<T>()}};
}

// The other operand if one is NaN (or NaN, with .NaN). -0 is less than +0.
template <bool Max, bool PropagateNan, class T>
T choose(T a, T b) {
    if (a != a || b != b) {
        if (PropagateNan) {
            return canonical(std::numeric_limits<T>::quiet_NaN());
        }
        return a != a ? (b != b ? canonical(quiet(b)) : b) : a;
    }
    if (a == b) {
        return std::signbit(a) == Max ? b : a;
    }
    return (a < b) != Max ? a : b;
}

// ".xorsign.abs": the smaller (larger) magnitude with the product's sign.
template <bool Max, bool PropagateNan, class T>
T choose_xorsign(T a, T b) {
    const bool negative = std::signbit(a) != std::signbit(b);
    const T magnitude = choose<Max, PropagateNan>(std::fabs(a), std::fabs(b));
    return magnitude != magnitude ? magnitude : (negative ? -magnitude : magnitude);
}

}  // namespace
}  // namespace gpupool::softgpu::GPUPOOL_SOFTGPU_ISA
