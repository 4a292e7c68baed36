// Integer arithmetic. Wrapping operations use unsigned types, whose overflow is PTX's two's complement.
#include <algorithm>

#include "server/softgpu/exec/lanes.h"

namespace gpupool::softgpu::GPUPOOL_SOFTGPU_ISA {
namespace {

using u128 = unsigned __int128;
using s128 = __int128;

// Division as in hardware: it does not trap, and x/0 is all ones.
template <class T>
T divide(T a, T b) {
    if (b == 0) {
        return static_cast<T>(~T{0});
    }
    if constexpr (std::is_signed_v<T>) {
        if (b == -1) {
            return static_cast<T>(0 - static_cast<std::make_unsigned_t<T>>(a));
        }
    }
    return static_cast<T>(a / b);
}

template <class T>
T remainder(T a, T b) {
    if (b == 0) {
        return a;
    }
    if constexpr (std::is_signed_v<T>) {
        if (b == -1) {
            return 0;
        }
    }
    return static_cast<T>(a % b);
}

template <class T>
T saturate(s64 value) {
    return static_cast<T>(std::clamp<s64>(value, std::numeric_limits<T>::min(), std::numeric_limits<T>::max()));
}

// The 48-bit product. Its high part is everything but the lowest 16 bits.
template <class T>
T product24(u32 a, u32 b) {
    if constexpr (std::is_signed_v<T>) {
        return T{static_cast<s32>(a << 8) >> 8} * T{static_cast<s32>(b << 8) >> 8};
    } else {
        return T{a & 0xFFFFFF} * T{b & 0xFFFFFF};
    }
}

template <class T>
void register_wrapping(OpTable& t, std::initializer_list<std::string_view> add,
                       std::initializer_list<std::string_view> sub, std::initializer_list<std::string_view> mul,
                       std::initializer_list<std::string_view> mad) {
    // u16 is promoted to int, whose product could overflow, so multiply as u32.
    using W = std::conditional_t<sizeof(T) == 2, u32, T>;
    t.add(add, binary<T, T, T>([](T a, T b) { return static_cast<T>(a + b); }));
    t.add(sub, binary<T, T, T>([](T a, T b) { return static_cast<T>(a - b); }));
    t.add(mul, binary<T, T, T>([](T a, T b) { return static_cast<T>(W{a} * W{b}); }));
    t.add(mad, ternary<T, T, T, T>([](T a, T b, T c) { return static_cast<T>(W{a} * W{b} + W{c}); }));
}

void register_arithmetic(OpTable& t) {
    register_wrapping<u16>(t, {"add.u16", "add.s16"}, {"sub.u16", "sub.s16"}, {"mul.lo.u16", "mul.lo.s16"},
                           {"mad.lo.u16", "mad.lo.s16"});
    register_wrapping<u32>(t, {"add.u32", "add.s32"}, {"sub.u32", "sub.s32"}, {"mul.lo.u32", "mul.lo.s32"},
                           {"mad.lo.u32", "mad.lo.s32"});
    register_wrapping<u64>(t, {"add.u64", "add.s64"}, {"sub.u64", "sub.s64"}, {"mul.lo.u64", "mul.lo.s64"},
                           {"mad.lo.u64", "mad.lo.s64"});
    t.add({"add.sat.s32"}, binary<s32, s32, s32>([](s64 a, s64 b) { return saturate<s32>(a + b); }));
    t.add({"sub.sat.s32"}, binary<s32, s32, s32>([](s64 a, s64 b) { return saturate<s32>(a - b); }));
    t.add({"mad.hi.sat.s32"},
          ternary<s32, s32, s32, s32>([](s64 a, s64 b, s64 c) { return saturate<s32>(((a * b) >> 32) + c); }));

    t.add({"mul.hi.u16"}, binary<u16, u16, u16>([](u32 a, u32 b) { return a * b >> 16; }));
    t.add({"mul.hi.s16"}, binary<s16, s16, s16>([](s32 a, s32 b) { return a * b >> 16; }));
    t.add({"mul.hi.u32"}, binary<u32, u32, u32>([](u64 a, u64 b) { return a * b >> 32; }));
    t.add({"mul.hi.s32"}, binary<s32, s32, s32>([](s64 a, s64 b) { return a * b >> 32; }));
    t.add({"mul.hi.u64"}, binary<u64, u64, u64>([](u128 a, u128 b) { return a * b >> 64; }));
    t.add({"mul.hi.s64"}, binary<s64, s64, s64>([](s128 a, s128 b) { return a * b >> 64; }));
    t.add({"mad.hi.u32"},
          ternary<u32, u32, u32, u32>([](u64 a, u64 b, u32 c) { return static_cast<u32>(a * b >> 32) + c; }));
    t.add({"mad.hi.s32"},
          ternary<u32, s32, s32, u32>([](s64 a, s64 b, u32 c) { return static_cast<u32>(a * b >> 32) + c; }));
    t.add({"mad.hi.u64"},
          ternary<u64, u64, u64, u64>([](u128 a, u128 b, u64 c) { return static_cast<u64>(a * b >> 64) + c; }));
    t.add({"mad.hi.s64"},
          ternary<u64, s64, s64, u64>([](s128 a, s128 b, u64 c) { return static_cast<u64>(a * b >> 64) + c; }));
    t.add({"mul.wide.u16"}, binary<u32, u16, u16>([](u32 a, u32 b) { return a * b; }));
    t.add({"mul.wide.s16"}, binary<s32, s16, s16>([](s32 a, s32 b) { return a * b; }));
    t.add({"mul.wide.u32"}, binary<u64, u32, u32>([](u64 a, u64 b) { return a * b; }));
    t.add({"mul.wide.s32"}, binary<s64, s32, s32>([](s64 a, s64 b) { return a * b; }));
    t.add({"mad.wide.u16"}, ternary<u32, u16, u16, u32>([](u32 a, u32 b, u32 c) { return a * b + c; }));
    t.add({"mad.wide.s16"},
          ternary<u32, s16, s16, u32>([](s32 a, s32 b, u32 c) { return static_cast<u32>(a * b) + c; }));
    t.add({"mad.wide.u32"}, ternary<u64, u32, u32, u64>([](u64 a, u64 b, u64 c) { return a * b + c; }));
    t.add({"mad.wide.s32"},
          ternary<u64, s32, s32, u64>([](s64 a, s64 b, u64 c) { return static_cast<u64>(a * b) + c; }));
    t.add({"mad.hi.u16"}, ternary<u16, u16, u16, u16>([](u32 a, u32 b, u32 c) { return (a * b >> 16) + c; }));
    t.add({"mad.hi.s16"},
          ternary<u16, s16, s16, u16>([](s32 a, s32 b, u32 c) { return static_cast<u32>(a * b >> 16) + c; }));
    t.add({"mul24.hi.u32"}, binary<u32, u32, u32>([](u32 a, u32 b) { return product24<u64>(a, b) >> 16; }));
    t.add({"mul24.hi.s32"}, binary<u32, u32, u32>([](u32 a, u32 b) { return product24<s64>(a, b) >> 16; }));
    t.add({"mad24.lo.u32"},
          ternary<u32, u32, u32, u32>([](u32 a, u32 b, u32 c) { return static_cast<u32>(product24<u64>(a, b)) + c; }));
    t.add({"mad24.lo.s32"},
          ternary<u32, u32, u32, u32>([](u32 a, u32 b, u32 c) { return static_cast<u32>(product24<s64>(a, b)) + c; }));
    t.add({"mad24.hi.u32"}, ternary<u32, u32, u32, u32>(
                                [](u32 a, u32 b, u32 c) { return static_cast<u32>(product24<u64>(a, b) >> 16) + c; }));
    t.add({"mad24.hi.s32"}, ternary<u32, u32, u32, u32>(
                                [](u32 a, u32 b, u32 c) { return static_cast<u32>(product24<s64>(a, b) >> 16) + c; }));
    t.add({"mad24.hi.sat.s32"}, ternary<s32, u32, u32, s32>([](u32 a, u32 b, s32 c) {
              return saturate<s32>((product24<s64>(a, b) >> 16) + c);
          }));
    t.add({"mul24.lo.u32"}, binary<u32, u32, u32>([](u32 a, u32 b) { return (a & 0xFFFFFF) * (b & 0xFFFFFF); }));
    t.add({"mul24.lo.s32"}, binary<u32, u32, u32>([](u32 a, u32 b) {
              return static_cast<u32>(static_cast<s32>(a << 8) >> 8) * static_cast<u32>(static_cast<s32>(b << 8) >> 8);
          }));
}

template <class T>
void register_signed(OpTable& t, std::string_view abs, std::string_view neg) {
    using U = std::make_unsigned_t<T>;
    t.add({abs}, unary<U, T>([](T a) { return a < 0 ? static_cast<U>(U{0} - static_cast<U>(a)) : static_cast<U>(a); }));
    t.add({neg}, unary<U, U>([](U a) { return static_cast<U>(U{0} - a); }));
}

template <class T>
void register_ordered(OpTable& t, std::string_view min, std::string_view max, std::string_view div,
                      std::string_view rem) {
    t.add({min}, binary<T, T, T>([](T a, T b) { return a < b ? a : b; }));
    t.add({max}, binary<T, T, T>([](T a, T b) { return a < b ? b : a; }));
    t.add({div}, binary<T, T, T>([](T a, T b) { return divide<T>(a, b); }));
    t.add({rem}, binary<T, T, T>([](T a, T b) { return remainder<T>(a, b); }));
}

// CC.CF is one bit per lane. Out: writes the carry; In: reads it. A subtraction's carry is that of adding the
// complement: set if there was no borrow. Programs that mix additions and subtractions depend on it, such as nvcc's
// division of 128 bits.
template <class T, bool Out, bool In, bool Subtract>
void run_carry(Warp& w, const Inst& i) {
    T* d = w.reg<T>(i.d);
    const T* a = w.reg<T>(i.a);
    const T* b = w.reg<T>(i.b);
    for (u32 rest = w.exec; rest != 0; rest &= rest - 1) {
        const u32 lane = static_cast<u32>(std::countr_zero(rest));
        const bool carry = (w.carry >> lane & 1) != 0;
        const T in = In && carry != Subtract ? T{1} : T{0};
        T partial, result;
        bool first, second;
        if constexpr (Subtract) {
            first = __builtin_sub_overflow(a[lane], b[lane], &partial);
            second = __builtin_sub_overflow(partial, in, &result);
        } else {
            first = __builtin_add_overflow(a[lane], b[lane], &partial);
            second = __builtin_add_overflow(partial, in, &result);
        }
        d[lane] = result;
        if constexpr (Out) {
            w.carry = (w.carry & ~(1U << lane)) | ((first || second) != Subtract ? 1U << lane : 0);
        }
    }
}

template <class T, class Wide, bool High, bool Out, bool In>
void run_mad_carry(Warp& w, const Inst& i) {
    using U = std::make_unsigned_t<T>;
    U* d = w.reg<U>(i.d);
    const T* a = w.reg<T>(i.a);
    const T* b = w.reg<T>(i.b);
    const U* c = w.reg<U>(i.c);
    for (u32 rest = w.exec; rest != 0; rest &= rest - 1) {
        const u32 lane = static_cast<u32>(std::countr_zero(rest));
        const Wide product = static_cast<Wide>(a[lane]) * static_cast<Wide>(b[lane]);
        const U part = static_cast<U>(High ? product >> (8 * sizeof(T)) : product);
        U partial, result;
        const bool first = __builtin_add_overflow(part, c[lane], &partial);
        const bool second = __builtin_add_overflow(partial, In ? static_cast<U>(w.carry >> lane & 1) : U{0}, &result);
        d[lane] = result;
        if constexpr (Out) {
            w.carry = (w.carry & ~(1U << lane)) | (first || second ? 1U << lane : 0);
        }
    }
}

template <class T>
Op carry_op(OpFn fn) {
    return {fn, slot_of<T>(), {slot_of<T>(), slot_of<T>()}};
}

template <class T>
Op mad_carry_op(OpFn fn) {
    return {fn, slot_of<T>(), {slot_of<T>(), slot_of<T>(), slot_of<T>()}};
}

void register_carries(OpTable& t) {
    t.add({"add.cc.u32", "add.cc.s32"}, carry_op<u32>(run_carry<u32, true, false, false>));
    t.add({"addc.cc.u32", "addc.cc.s32"}, carry_op<u32>(run_carry<u32, true, true, false>));
    t.add({"addc.u32", "addc.s32"}, carry_op<u32>(run_carry<u32, false, true, false>));
    t.add({"sub.cc.u32", "sub.cc.s32"}, carry_op<u32>(run_carry<u32, true, false, true>));
    t.add({"subc.cc.u32", "subc.cc.s32"}, carry_op<u32>(run_carry<u32, true, true, true>));
    t.add({"subc.u32", "subc.s32"}, carry_op<u32>(run_carry<u32, false, true, true>));
    t.add({"add.cc.u64", "add.cc.s64"}, carry_op<u64>(run_carry<u64, true, false, false>));
    t.add({"addc.cc.u64", "addc.cc.s64"}, carry_op<u64>(run_carry<u64, true, true, false>));
    t.add({"addc.u64", "addc.s64"}, carry_op<u64>(run_carry<u64, false, true, false>));
    t.add({"sub.cc.u64", "sub.cc.s64"}, carry_op<u64>(run_carry<u64, true, false, true>));
    t.add({"subc.cc.u64", "subc.cc.s64"}, carry_op<u64>(run_carry<u64, true, true, true>));
    t.add({"subc.u64", "subc.s64"}, carry_op<u64>(run_carry<u64, false, true, true>));
#define MAD_CARRIES(T, Wide, name)                                                           \
    t.add({"mad.lo.cc." name}, mad_carry_op<T>(run_mad_carry<T, Wide, false, true, false>)); \
    t.add({"madc.lo.cc." name}, mad_carry_op<T>(run_mad_carry<T, Wide, false, true, true>)); \
    t.add({"madc.lo." name}, mad_carry_op<T>(run_mad_carry<T, Wide, false, false, true>));   \
    t.add({"mad.hi.cc." name}, mad_carry_op<T>(run_mad_carry<T, Wide, true, true, false>));  \
    t.add({"madc.hi.cc." name}, mad_carry_op<T>(run_mad_carry<T, Wide, true, true, true>));  \
    t.add({"madc.hi." name}, mad_carry_op<T>(run_mad_carry<T, Wide, true, false, true>));
    MAD_CARRIES(u32, u64, "u32")
    MAD_CARRIES(s32, s64, "s32")
    MAD_CARRIES(u64, u128, "u64")
    MAD_CARRIES(s64, s128, "s64")
#undef MAD_CARRIES
}

template <class A, class B>
u32 dot4(u32 a, u32 b, u32 c) {
    for (int byte = 0; byte < 4; ++byte) {
        c += static_cast<u32>(static_cast<s32>(static_cast<A>(a >> 8 * byte)) *
                              static_cast<s32>(static_cast<B>(b >> 8 * byte)));
    }
    return c;
}

template <class A, class B, int Half>
u32 dot2(u32 a, u32 b, u32 c) {
    for (int i = 0; i < 2; ++i) {
        c += static_cast<u32>(static_cast<s32>(static_cast<A>(a >> 16 * i)) *
                              static_cast<s32>(static_cast<B>(b >> (16 * Half + 8 * i))));
    }
    return c;
}

void register_dots(OpTable& t) {
    t.add({"dp4a.u32.u32"}, ternary<u32, u32, u32, u32>([](u32 a, u32 b, u32 c) { return dot4<u8, u8>(a, b, c); }));
    t.add({"dp4a.u32.s32"}, ternary<u32, u32, u32, u32>([](u32 a, u32 b, u32 c) { return dot4<u8, s8>(a, b, c); }));
    t.add({"dp4a.s32.u32"}, ternary<u32, u32, u32, u32>([](u32 a, u32 b, u32 c) { return dot4<s8, u8>(a, b, c); }));
    t.add({"dp4a.s32.s32"}, ternary<u32, u32, u32, u32>([](u32 a, u32 b, u32 c) { return dot4<s8, s8>(a, b, c); }));
#define DOT2(half, H)                                                                                  \
    t.add({"dp2a." half ".u32.u32"},                                                                   \
          ternary<u32, u32, u32, u32>([](u32 a, u32 b, u32 c) { return dot2<u16, u8, H>(a, b, c); })); \
    t.add({"dp2a." half ".u32.s32"},                                                                   \
          ternary<u32, u32, u32, u32>([](u32 a, u32 b, u32 c) { return dot2<u16, s8, H>(a, b, c); })); \
    t.add({"dp2a." half ".s32.u32"},                                                                   \
          ternary<u32, u32, u32, u32>([](u32 a, u32 b, u32 c) { return dot2<s16, u8, H>(a, b, c); })); \
    t.add({"dp2a." half ".s32.s32"},                                                                   \
          ternary<u32, u32, u32, u32>([](u32 a, u32 b, u32 c) { return dot2<s16, s8, H>(a, b, c); }));
    DOT2("lo", 0)
    DOT2("hi", 1)
#undef DOT2
}

}  // namespace

void register_integer(OpTable& t) {
    register_arithmetic(t);
    register_signed<s16>(t, "abs.s16", "neg.s16");
    register_signed<s32>(t, "abs.s32", "neg.s32");
    register_signed<s64>(t, "abs.s64", "neg.s64");
    register_ordered<u16>(t, "min.u16", "max.u16", "div.u16", "rem.u16");
    register_ordered<s16>(t, "min.s16", "max.s16", "div.s16", "rem.s16");
    register_ordered<u32>(t, "min.u32", "max.u32", "div.u32", "rem.u32");
    register_ordered<s32>(t, "min.s32", "max.s32", "div.s32", "rem.s32");
    register_ordered<u64>(t, "min.u64", "max.u64", "div.u64", "rem.u64");
    register_ordered<s64>(t, "min.s64", "max.s64", "div.s64", "rem.s64");
    t.add({"min.relu.s32", "min.s32.relu"},
          binary<s32, s32, s32>([](s32 a, s32 b) { return std::max(std::min(a, b), 0); }));
    t.add({"max.relu.s32", "max.s32.relu"},
          binary<s32, s32, s32>([](s32 a, s32 b) { return std::max(std::max(a, b), 0); }));
    t.add({"sad.u32"}, ternary<u32, u32, u32, u32>([](u32 a, u32 b, u32 c) { return c + (a < b ? b - a : a - b); }));
    t.add({"sad.s32"},
          ternary<u32, s32, s32, u32>([](s64 a, s64 b, u32 c) { return c + static_cast<u32>(a < b ? b - a : a - b); }));
    t.add({"sad.u16"}, ternary<u16, u16, u16, u16>([](u32 a, u32 b, u32 c) { return c + (a < b ? b - a : a - b); }));
    t.add({"sad.s16"},
          ternary<u16, s16, s16, u16>([](s32 a, s32 b, u32 c) { return c + static_cast<u32>(a < b ? b - a : a - b); }));
    t.add({"sad.u64"}, ternary<u64, u64, u64, u64>([](u64 a, u64 b, u64 c) { return c + (a < b ? b - a : a - b); }));
    t.add({"sad.s64"}, ternary<u64, s64, s64, u64>([](s64 a, s64 b, u64 c) {
              return c +
                     (a < b ? static_cast<u64>(b) - static_cast<u64>(a) : static_cast<u64>(a) - static_cast<u64>(b));
          }));
    register_carries(t);
    register_dots(t);
}

}  // namespace gpupool::softgpu::GPUPOOL_SOFTGPU_ISA
