// Turns an operation on one lane into an instruction on 32. Included by the ops_*.cpp files only.
//
// Everything is in a namespace named after the instruction set that the file is compiled for, so that the linker cannot
// give a machine without AVX2 a function that was compiled with it.
//
// Threads, ownership: none; pure functions over a warp's registers.
#pragma once

#include <emmintrin.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "server/softgpu/exec/op_table.h"
#include "server/softgpu/exec/warp.h"

#ifndef GPUPOOL_SOFTGPU_ISA
#define GPUPOOL_SOFTGPU_ISA ops_base
#endif

// Before a loop: its iterations are independent, so the compiler may vectorise it.
#ifdef __clang__
#define GPUPOOL_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define GPUPOOL_INDEPENDENT _Pragma("GCC ivdep")
#endif

namespace gpupool::softgpu::GPUPOOL_SOFTGPU_ISA {

using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using s8 = std::int8_t;
using s16 = std::int16_t;
using s32 = std::int32_t;
using s64 = std::int64_t;

namespace {

template <class T>
constexpr Slot slot_of() {
    if constexpr (std::is_same_v<T, bool>) {
        return Slot::pred;
    }
    if constexpr (std::is_same_v<T, float>) {
        return Slot::float32;
    }
    if constexpr (std::is_same_v<T, double>) {
        return Slot::float64;
    }
    if constexpr (sizeof(T) == 2) {
        return Slot::bits16;
    }
    if constexpr (sizeof(T) == 4) {
        return Slot::bits32;
    }
    return Slot::bits64;
}

// Calls f(lane) for each active lane. If all are active, the compiler may vectorise the loop.
template <class F>
[[gnu::always_inline]] inline void each_lane(std::uint32_t exec, F f) {
    if (exec == kAllLanes) {
        GPUPOOL_INDEPENDENT
        for (std::uint32_t lane = 0; lane < kLaneCount; ++lane) {
            f(lane);
        }
    } else {
        for (std::uint32_t rest = exec; rest != 0; rest &= rest - 1) {
            f(static_cast<std::uint32_t>(std::countr_zero(rest)));
        }
    }
}

template <class D, class A, class F>
void run_unary(Warp& w, const Inst& i) {
    D* d = w.reg<D>(i.d);
    const A* a = w.reg<A>(i.a);
    each_lane(w.exec, [=](std::uint32_t l) { d[l] = static_cast<D>(F{}(a[l])); });
}

template <class D, class A, class B, class F>
void run_binary(Warp& w, const Inst& i) {
    D* d = w.reg<D>(i.d);
    const A* a = w.reg<A>(i.a);
    const B* b = w.reg<B>(i.b);
    each_lane(w.exec, [=](std::uint32_t l) { d[l] = static_cast<D>(F{}(a[l], b[l])); });
}

template <class D, class A, class B, class C, class F>
void run_ternary(Warp& w, const Inst& i) {
    D* d = w.reg<D>(i.d);
    const A* a = w.reg<A>(i.a);
    const B* b = w.reg<B>(i.b);
    const C* c = w.reg<C>(i.c);
    each_lane(w.exec, [=](std::uint32_t l) { d[l] = static_cast<D>(F{}(a[l], b[l], c[l])); });
}

template <class D, class A, class B, class C, class E, class F>
void run_quaternary(Warp& w, const Inst& i) {
    D* d = w.reg<D>(i.d);
    const A* a = w.reg<A>(i.a);
    const B* b = w.reg<B>(i.b);
    const C* c = w.reg<C>(i.c);
    const E* e = w.reg<E>(i.e);
    each_lane(w.exec, [=](std::uint32_t l) { d[l] = static_cast<D>(F{}(a[l], b[l], c[l], e[l])); });
}

// d = f(a). The types are the slots' element types. The lambda must not capture.
template <class D, class A, class F>
Op unary(F) {
    return {run_unary<D, A, F>, slot_of<D>(), {slot_of<A>()}};
}

template <class D, class A, class B, class F>
Op binary(F) {
    return {run_binary<D, A, B, F>, slot_of<D>(), {slot_of<A>(), slot_of<B>()}};
}

template <class D, class A, class B, class C, class F>
Op ternary(F) {
    return {run_ternary<D, A, B, C, F>, slot_of<D>(), {slot_of<A>(), slot_of<B>(), slot_of<C>()}};
}

template <class D, class A, class B, class C, class E, class F>
Op quaternary(F) {
    return {run_quaternary<D, A, B, C, E, F>, slot_of<D>(), {slot_of<A>(), slot_of<B>(), slot_of<C>(), slot_of<E>()}};
}

// A mask of the lanes for which f is true. Goes through bytes, which vectorises: SSE2 packs bytes into bits.
template <class F>
[[gnu::always_inline]] inline std::uint32_t lane_mask(F f) {
    alignas(16) std::uint8_t bytes[kLaneCount];
    for (std::uint32_t lane = 0; lane < kLaneCount; ++lane) {
        bytes[lane] = f(lane) ? 0xFF : 0;
    }
    const auto* halves = reinterpret_cast<const __m128i*>(bytes);
    return static_cast<std::uint32_t>(_mm_movemask_epi8(halves[0])) |
           static_cast<std::uint32_t>(_mm_movemask_epi8(halves[1])) << 16;
}

// How a comparison is combined with `c`. PTX: p = cmp op c, q = !cmp op c.
enum class Combine : std::uint8_t { none, both, either, one };

inline std::uint32_t combine(std::uint8_t mode, std::uint32_t compared, std::uint32_t c) {
    switch (static_cast<Combine>(mode)) {
        case Combine::none: return compared;
        case Combine::both: return compared & c;
        case Combine::either: return compared | c;
        case Combine::one: return compared ^ c;
    }
    return compared;
}

[[gnu::always_inline]] inline void set_pred(Warp& w, std::uint32_t slot, std::uint32_t value) {
    if (slot == kNoSlot) {
        return;
    }
    std::uint32_t& p = w.pred(slot);
    p = (p & ~w.exec) | (value & w.exec);
}

}  // namespace
}  // namespace gpupool::softgpu::GPUPOOL_SOFTGPU_ISA
