// Bit operations, shifts, selection and moves.
#include <algorithm>
#include <limits>

#include "server/softgpu/exec/lanes.h"

namespace gpupool::softgpu::GPUPOOL_SOFTGPU_ISA {
namespace {

template <class T>
void register_logic(OpTable& t, std::string_view and_, std::string_view or_, std::string_view xor_,
                    std::string_view not_, std::string_view cnot) {
    t.add({and_}, binary<T, T, T>([](T a, T b) { return static_cast<T>(a & b); }));
    t.add({or_}, binary<T, T, T>([](T a, T b) { return static_cast<T>(a | b); }));
    t.add({xor_}, binary<T, T, T>([](T a, T b) { return static_cast<T>(a ^ b); }));
    t.add({not_}, unary<T, T>([](T a) { return static_cast<T>(~a); }));
    t.add({cnot}, unary<T, T>([](T a) { return static_cast<T>(a == 0 ? 1 : 0); }));
}

// A shift count beyond the width gives zero, or the sign.
template <class U, class S>
void register_shifts(OpTable& t, std::initializer_list<std::string_view> shl,
                     std::initializer_list<std::string_view> shr_unsigned, std::string_view shr_signed) {
    constexpr u32 kBits = 8 * sizeof(U);
    t.add(shl, binary<U, U, u32>([](U a, u32 n) { return static_cast<U>(n >= kBits ? 0 : u64{a} << (n & 63)); }));
    t.add(shr_unsigned,
          binary<U, U, u32>([](U a, u32 n) { return static_cast<U>(n >= kBits ? 0 : a >> (n & (kBits - 1))); }));
    t.add({shr_signed},
          binary<S, S, u32>([](S a, u32 n) { return static_cast<S>(a >> (n >= kBits ? kBits - 1 : n)); }));
}

template <class Op>
void run_pred_binary(Warp& w, const Inst& i) {
    set_pred(w, i.d, Op{}(w.pred(i.a), w.pred(i.b)));
}

void run_pred_not(Warp& w, const Inst& i) {
    set_pred(w, i.d, ~w.pred(i.a));
}
void run_pred_move(Warp& w, const Inst& i) {
    set_pred(w, i.d, w.pred(i.a));
}

template <class F>
Op pred_binary(F) {
    return {run_pred_binary<F>, Slot::pred, {Slot::pred, Slot::pred}};
}

template <class T>
void run_select(Warp& w, const Inst& i) {
    T* d = w.reg<T>(i.d);
    const T* a = w.reg<T>(i.a);
    const T* b = w.reg<T>(i.b);
    const u32 p = w.pred(i.c);
    each_lane(w.exec, [=](u32 l) { d[l] = (p >> l & 1) != 0 ? a[l] : b[l]; });
}

template <class T>
Op select() {
    return {run_select<T>, slot_of<T>(), {slot_of<T>(), slot_of<T>(), Slot::pred}};
}

// With .ftz a subnormal counts as a zero of its sign, so it is not below zero.
bool not_below_flushed(float c) {
    return c > -std::numeric_limits<float>::min();
}

template <class T, class C>
Op select_by_sign() {
    return ternary<T, T, T, C>([](T a, T b, C c) { return c >= 0 ? a : b; });
}

u32 permute(u32 a, u32 b, u32 selector) {
    const u64 bytes = u64{b} << 32 | a;
    u32 result = 0;
    for (u32 i = 0; i < 4; ++i) {
        const u32 nibble = selector >> 4 * i & 0xF;
        u32 byte = static_cast<u32>(bytes >> 8 * (nibble & 7)) & 0xFF;
        if ((nibble & 8) != 0) {
            byte = (byte & 0x80) != 0 ? 0xFF : 0;
        }
        result |= byte << 8 * i;
    }
    return result;
}

// The special modes of prmt choose bytes by the low two bits of the selector.
template <int Mode>
u32 permute_mode(u32 a, u32 b, u32 c) {
    static constexpr u32 kSelectors[6][4] = {
        {0x3210, 0x4321, 0x5432, 0x6543},  // f4e
        {0x5670, 0x6701, 0x7012, 0x0123},  // b4e
        {0x0000, 0x1111, 0x2222, 0x3333},  // rc8
        {0x3210, 0x3211, 0x3222, 0x3333},  // ecl
        {0x0000, 0x1110, 0x2210, 0x3210},  // ecr
        {0x1010, 0x3232, 0x1010, 0x3232},  // rc16
    };
    return permute(a, b, kSelectors[Mode][c & 3]);
}

// Position and length of a field are limited to 255: in 32 bits, the other bits of these operands are ignored. In 64
// bits, where GPUs compose the instruction of shifts, all 32 bits count.
template <class U>
u32 field_bits(u32 operand) {
    return sizeof(U) == 4 ? operand & 0xFF : operand;
}

template <class U, class S>
void register_fields(OpTable& t, std::string_view bfe_u, std::string_view bfe_s, std::string_view bfi) {
    constexpr u32 kBits = 8 * sizeof(U);
    t.add({bfe_u}, ternary<U, U, u32, u32>([](U a, u32 position, u32 length) {
              position = field_bits<U>(position), length = field_bits<U>(length);
              if (position >= kBits || length == 0) {
                  return U{0};
              }
              const U value = a >> position;
              return length >= kBits ? value : static_cast<U>(value & ((U{1} << length) - 1));
          }));
    t.add({bfe_s}, ternary<U, U, u32, u32>([](U a, u32 position, u32 length) {
              position = field_bits<U>(position), length = field_bits<U>(length);
              if (length == 0) {
                  return U{0};
              }
              const auto last = static_cast<u32>(std::min<u64>(u64{position} + length - 1, kBits - 1));
              const bool sign = (a >> last & 1) != 0;
              U value = position >= kBits ? U{0} : a >> position;
              const u32 kept = position >= kBits ? 0 : (last - position + 1);
              if (kept < kBits) {
                  const U mask = kept == 0 ? U{0} : static_cast<U>((U{1} << kept) - 1);
                  value = sign ? static_cast<U>(value | ~mask) : static_cast<U>(value & mask);
              }
              return value;
          }));
    t.add({bfi}, quaternary<U, U, U, u32, u32>([](U a, U b, u32 position, u32 length) {
              position = field_bits<U>(position), length = field_bits<U>(length);
              if (length == 0 || position >= kBits) {
                  return b;
              }
              const U ones = length >= kBits ? ~U{0} : (U{1} << length) - 1;
              const U mask = ones << position;
              return static_cast<U>((b & ~mask) | (a << position & mask));
          }));
}

template <class U>
u32 find_bit(U a, bool shift_amount) {
    if (a == 0) {
        return ~0U;
    }
    const u32 position = 8 * sizeof(U) - 1 - static_cast<u32>(std::countl_zero(a));
    return shift_amount ? 8 * sizeof(U) - 1 - position : position;
}

template <class S>
std::make_unsigned_t<S> fold_sign(S a) {
    return static_cast<std::make_unsigned_t<S>>(a < 0 ? ~a : a);
}

void register_counts(OpTable& t) {
    t.add({"popc.b32"}, unary<u32, u32>([](u32 a) { return std::popcount(a); }));
    t.add({"popc.b64"}, unary<u32, u64>([](u64 a) { return std::popcount(a); }));
    t.add({"clz.b32"}, unary<u32, u32>([](u32 a) { return std::countl_zero(a); }));
    t.add({"clz.b64"}, unary<u32, u64>([](u64 a) { return std::countl_zero(a); }));
    t.add({"brev.b32"}, unary<u32, u32>([](u32 a) {
              a = __builtin_bswap32(a);
              a = (a >> 4 & 0x0F0F0F0F) | (a & 0x0F0F0F0F) << 4;
              a = (a >> 2 & 0x33333333) | (a & 0x33333333) << 2;
              return (a >> 1 & 0x55555555) | (a & 0x55555555) << 1;
          }));
    t.add({"brev.b64"}, unary<u64, u64>([](u64 a) {
              a = __builtin_bswap64(a);
              a = (a >> 4 & 0x0F0F0F0F0F0F0F0F) | (a & 0x0F0F0F0F0F0F0F0F) << 4;
              a = (a >> 2 & 0x3333333333333333) | (a & 0x3333333333333333) << 2;
              return (a >> 1 & 0x5555555555555555) | (a & 0x5555555555555555) << 1;
          }));
    t.add({"bfind.u32"}, unary<u32, u32>([](u32 a) { return find_bit(a, false); }));
    t.add({"bfind.s32"}, unary<u32, s32>([](s32 a) { return find_bit(fold_sign(a), false); }));
    t.add({"bfind.u64"}, unary<u32, u64>([](u64 a) { return find_bit(a, false); }));
    t.add({"bfind.s64"}, unary<u32, s64>([](s64 a) { return find_bit(fold_sign(a), false); }));
    t.add({"bfind.shiftamt.u32"}, unary<u32, u32>([](u32 a) { return find_bit(a, true); }));
    t.add({"bfind.shiftamt.s32"}, unary<u32, s32>([](s32 a) { return find_bit(fold_sign(a), true); }));
    t.add({"bfind.shiftamt.u64"}, unary<u32, u64>([](u64 a) { return find_bit(a, true); }));
    t.add({"bfind.shiftamt.s64"}, unary<u32, s64>([](s64 a) { return find_bit(fold_sign(a), true); }));
    t.add({"fns.b32"}, ternary<u32, u32, u32, s32>([](u32 mask, u32 base, s32 offset) {
              base &= 31;
              if (offset == 0) {
                  return (mask >> base & 1) != 0 ? base : ~0U;
              }
              const s32 step = offset > 0 ? 1 : -1;
              s32 left = offset > 0 ? offset : -offset;
              for (s32 bit = static_cast<s32>(base); bit >= 0 && bit < 32; bit += step) {
                  if ((mask >> bit & 1) != 0 && --left == 0) {
                      return static_cast<u32>(bit);
                  }
              }
              return ~0U;
          }));
    t.add({"bmsk.clamp.b32"}, binary<u32, u32, u32>([](u32 from, u32 count) {
              if (from >= 32 || count == 0) {
                  return 0U;
              }
              const u32 ones = count >= 32 ? ~0U : (1U << count) - 1;
              return ones << from;
          }));
    t.add({"bmsk.wrap.b32"},
          binary<u32, u32, u32>([](u32 from, u32 count) { return ((1U << (count & 31)) - 1) << (from & 31); }));
    // Clamped: 32 or more bits are the whole value. Wrapped: 32 bits are zero bits.
    static constexpr auto extend_signed = [](u32 a, u32 n) {
        return n == 0 ? 0U : static_cast<u32>(static_cast<s32>(a << (32 - n)) >> (32 - n));
    };
    static constexpr auto extend_unsigned = [](u32 a, u32 n) { return n >= 32 ? a : a & ((1U << n) - 1); };
    t.add({"szext.clamp.s32"}, binary<u32, u32, u32>([](u32 a, u32 n) { return extend_signed(a, n > 32 ? 32 : n); }));
    t.add({"szext.wrap.s32"}, binary<u32, u32, u32>([](u32 a, u32 n) { return extend_signed(a, n & 31); }));
    t.add({"szext.clamp.u32"}, binary<u32, u32, u32>([](u32 a, u32 n) { return extend_unsigned(a, n); }));
    t.add({"szext.wrap.u32"}, binary<u32, u32, u32>([](u32 a, u32 n) { return extend_unsigned(a, n & 31); }));
}

void register_funnels(OpTable& t) {
    t.add({"shf.l.wrap.b32"}, ternary<u32, u32, u32, u32>([](u32 lo, u32 hi, u32 n) {
              return static_cast<u32>((u64{hi} << 32 | lo) << (n & 31) >> 32);
          }));
    t.add({"shf.r.wrap.b32"}, ternary<u32, u32, u32, u32>([](u32 lo, u32 hi, u32 n) {
              return static_cast<u32>((u64{hi} << 32 | lo) >> (n & 31));
          }));
    t.add({"shf.l.clamp.b32"}, ternary<u32, u32, u32, u32>([](u32 lo, u32 hi, u32 n) {
              return static_cast<u32>((u64{hi} << 32 | lo) << (n > 32 ? 32 : n) >> 32);
          }));
    t.add({"shf.r.clamp.b32"}, ternary<u32, u32, u32, u32>([](u32 lo, u32 hi, u32 n) {
              return static_cast<u32>((u64{hi} << 32 | lo) >> (n > 32 ? 32 : n));
          }));
}

}  // namespace

void register_bits(OpTable& t) {
    register_logic<u16>(t, "and.b16", "or.b16", "xor.b16", "not.b16", "cnot.b16");
    register_logic<u32>(t, "and.b32", "or.b32", "xor.b32", "not.b32", "cnot.b32");
    register_logic<u64>(t, "and.b64", "or.b64", "xor.b64", "not.b64", "cnot.b64");
    register_shifts<u16, s16>(t, {"shl.b16"}, {"shr.u16", "shr.b16"}, "shr.s16");
    register_shifts<u32, s32>(t, {"shl.b32"}, {"shr.u32", "shr.b32"}, "shr.s32");
    register_shifts<u64, s64>(t, {"shl.b64"}, {"shr.u64", "shr.b64"}, "shr.s64");
    t.add({"and.pred"}, pred_binary([](u32 a, u32 b) { return a & b; }));
    t.add({"or.pred"}, pred_binary([](u32 a, u32 b) { return a | b; }));
    t.add({"xor.pred"}, pred_binary([](u32 a, u32 b) { return a ^ b; }));
    t.add({"not.pred"}, {run_pred_not, Slot::pred, {Slot::pred}});
    t.add({"mov.pred"}, {run_pred_move, Slot::pred, {Slot::pred}});
    t.add({"mov.b16", "mov.u16", "mov.s16", "mov.f16"}, unary<u16, u16>([](u16 a) { return a; }));
    t.add({"mov.b32", "mov.u32", "mov.s32", "mov.f32"}, unary<u32, u32>([](u32 a) { return a; }));
    t.add({"mov.b64", "mov.u64", "mov.s64", "mov.f64"}, unary<u64, u64>([](u64 a) { return a; }));
    t.add({"selp.b16", "selp.u16", "selp.s16", "selp.f16"}, select<u16>());
    t.add({"selp.b32", "selp.u32", "selp.s32", "selp.f32"}, select<u32>());
    t.add({"selp.b64", "selp.u64", "selp.s64", "selp.f64"}, select<u64>());
    t.add({"slct.b32.s32", "slct.u32.s32", "slct.s32.s32", "slct.f32.s32"}, select_by_sign<u32, s32>());
    t.add({"slct.b64.s32", "slct.u64.s32", "slct.s64.s32", "slct.f64.s32"}, select_by_sign<u64, s32>());
    t.add({"slct.b32.f32", "slct.u32.f32", "slct.s32.f32", "slct.f32.f32"}, select_by_sign<u32, float>());
    t.add({"slct.b64.f32", "slct.u64.f32", "slct.s64.f32", "slct.f64.f32"}, select_by_sign<u64, float>());
    t.add({"slct.b16.s32", "slct.u16.s32", "slct.s16.s32"}, select_by_sign<u16, s32>());
    t.add({"slct.b16.f32", "slct.u16.f32", "slct.s16.f32"}, select_by_sign<u16, float>());
    t.add({"slct.ftz.b32.f32", "slct.ftz.u32.f32", "slct.ftz.s32.f32", "slct.ftz.f32.f32"},
          ternary<u32, u32, u32, float>([](u32 a, u32 b, float c) { return not_below_flushed(c) ? a : b; }));
    t.add({"slct.ftz.b64.f32", "slct.ftz.u64.f32", "slct.ftz.s64.f32", "slct.ftz.f64.f32"},
          ternary<u64, u64, u64, float>([](u64 a, u64 b, float c) { return not_below_flushed(c) ? a : b; }));
    t.add({"prmt.b32"}, ternary<u32, u32, u32, u32>([](u32 a, u32 b, u32 c) { return permute(a, b, c); }));
    t.add({"prmt.b32.f4e"}, ternary<u32, u32, u32, u32>([](u32 a, u32 b, u32 c) { return permute_mode<0>(a, b, c); }));
    t.add({"prmt.b32.b4e"}, ternary<u32, u32, u32, u32>([](u32 a, u32 b, u32 c) { return permute_mode<1>(a, b, c); }));
    t.add({"prmt.b32.rc8"}, ternary<u32, u32, u32, u32>([](u32 a, u32 b, u32 c) { return permute_mode<2>(a, b, c); }));
    t.add({"prmt.b32.ecl"}, ternary<u32, u32, u32, u32>([](u32 a, u32 b, u32 c) { return permute_mode<3>(a, b, c); }));
    t.add({"prmt.b32.ecr"}, ternary<u32, u32, u32, u32>([](u32 a, u32 b, u32 c) { return permute_mode<4>(a, b, c); }));
    t.add({"prmt.b32.rc16"}, ternary<u32, u32, u32, u32>([](u32 a, u32 b, u32 c) { return permute_mode<5>(a, b, c); }));
    t.add({"lop3.b32"}, quaternary<u32, u32, u32, u32, u32>([](u32 a, u32 b, u32 c, u32 table) {
              u32 result = 0;
              for (u32 row = 0; row < 8; ++row) {
                  const u32 selected =
                      ((row & 4) != 0 ? a : ~a) & ((row & 2) != 0 ? b : ~b) & ((row & 1) != 0 ? c : ~c);
                  result |= (table >> row & 1) != 0 ? selected : 0;
              }
              return result;
          }));
    register_fields<u32, s32>(t, "bfe.u32", "bfe.s32", "bfi.b32");
    register_fields<u64, s64>(t, "bfe.u64", "bfe.s64", "bfi.b64");
    register_counts(t);
    register_funnels(t);
    // Widen and narrow between slots. Used by the lowering; not PTX names.
    t.add({"widen.u16.u32"}, unary<u32, u16>([](u16 a) { return a; }));
    t.add({"widen.u16.u64"}, unary<u64, u16>([](u16 a) { return a; }));
    t.add({"widen.u32.u64"}, unary<u64, u32>([](u32 a) { return a; }));
    t.add({"widen.s16.u32"}, unary<s32, s16>([](s16 a) { return a; }));
    t.add({"widen.s16.u64"}, unary<s64, s16>([](s16 a) { return a; }));
    t.add({"widen.s32.u64"}, unary<s64, s32>([](s32 a) { return a; }));
    t.add({"narrow.u32.u16"}, unary<u16, u32>([](u32 a) { return a; }));
    t.add({"narrow.u64.u16"}, unary<u16, u64>([](u64 a) { return a; }));
    t.add({"narrow.u64.u32"}, unary<u32, u64>([](u64 a) { return a; }));
    t.add({"pack.u8.u16"}, binary<u16, u16, u16>([](u16 a, u16 b) { return static_cast<u16>((a & 0xFF) | b << 8); }));
    t.add({"low.u16.u8"}, unary<u16, u16>([](u16 a) { return static_cast<u16>(a & 0xFF); }));
    t.add({"high.u16.u8"}, unary<u16, u16>([](u16 a) { return static_cast<u16>(a >> 8); }));
    t.add({"pack.u16.u32"}, binary<u32, u16, u16>([](u32 a, u32 b) { return a | b << 16; }));
    t.add({"pack.u32.u64"}, binary<u64, u32, u32>([](u64 a, u64 b) { return a | b << 32; }));
    t.add({"high.u32.u16"}, unary<u16, u32>([](u32 a) { return a >> 16; }));
    t.add({"high.u64.u32"}, unary<u32, u64>([](u64 a) { return a >> 32; }));
}

}  // namespace gpupool::softgpu::GPUPOOL_SOFTGPU_ISA
