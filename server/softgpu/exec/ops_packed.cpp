// Several values in one register: pairs of 16-bit integers, the video instructions, 8-bit floats; also alloca.
#include <algorithm>
#include <limits>

#include "server/softgpu/exec/convert_mode.h"
#include "server/softgpu/exec/half.h"
#include "server/softgpu/exec/video_form.h"

namespace gpupool::softgpu::GPUPOOL_SOFTGPU_ISA {
namespace {

template <class T, class F>
u32 each_half(u32 a, u32 b, F f) {
    const auto half = [&](int n) {
        return static_cast<u32>(static_cast<u16>(f(static_cast<T>(a >> 16 * n), static_cast<T>(b >> 16 * n))));
    };
    return half(0) | half(1) << 16;
}

template <class T, class F>
void pairs(OpTable& t, std::string_view name, F) {
    t.add({name}, binary<u32, u32, u32>([](u32 a, u32 b) { return each_half<T>(a, b, F{}); }));
}

void register_pairs(OpTable& t) {
    pairs<u16>(t, "add.u16x2", [](u16 a, u16 b) { return a + b; });
    pairs<u16>(t, "add.s16x2", [](u16 a, u16 b) { return a + b; });
    pairs<u16>(t, "min.u16x2", [](u16 a, u16 b) { return std::min(a, b); });
    pairs<u16>(t, "max.u16x2", [](u16 a, u16 b) { return std::max(a, b); });
    pairs<s16>(t, "min.s16x2", [](s16 a, s16 b) { return std::min(a, b); });
    pairs<s16>(t, "max.s16x2", [](s16 a, s16 b) { return std::max(a, b); });
    for (const auto name : {"min.relu.s16x2", "min.s16x2.relu"}) {
        pairs<s16>(t, name, [](s16 a, s16 b) { return std::max<s16>(std::min(a, b), 0); });
    }
    for (const auto name : {"max.relu.s16x2", "max.s16x2.relu"}) {
        pairs<s16>(t, name, [](s16 a, s16 b) { return std::max<s16>(std::max(a, b), 0); });
    }
}

// --- video

s64 part_of(u32 value, u32 bits, u32 at, bool sign) {
    const u32 part = bits == 32 ? value : value >> at & ((1U << bits) - 1);
    if (!sign) {
        return part;
    }
    return bits == 32 ? s64{static_cast<s32>(part)} : s64{static_cast<s32>(part << (32 - bits)) >> (32 - bits)};
}

s64 selected(u32 value, u8 select, bool sign) {
    if (select == 0) {
        return part_of(value, 32, 0, sign);
    }
    return select <= 4 ? part_of(value, 8, 8U * (select - 1U), sign) : part_of(value, 16, 16U * (select - 5U), sign);
}

bool compare(u8 comparison, s64 a, s64 b) {
    switch (comparison) {
        case 0: return a == b;
        case 1: return a != b;
        case 2: return a < b;
        case 3: return a <= b;
        case 4: return a > b;
        default: return a >= b;
    }
}

s64 primary(const VideoForm& form, s64 a, s64 b) {
    switch (form.operation) {
        case 0: return a + b;
        case 1: return a - b;
        case 2: return a < b ? b - a : a - b;
        case 3: return std::min(a, b);
        case 4: return std::max(a, b);
        case 5: {
            // The average, with ties rounded away from zero.
            const s64 sum = a + b;
            return sum >= 0 ? (sum + 1) >> 1 : -((-sum + 1) >> 1);
        }
        case 6:
        case 7: {
            const u64 amount = static_cast<u64>(b) & 0xFFFFFFFF;
            const u64 distance = form.wraps ? amount & 31 : std::min<u64>(amount, 32);
            return form.operation == 6 ? static_cast<s64>(static_cast<u64>(a) << distance) : a >> distance;
        }
        case 8: return compare(form.comparison, a, b) ? 1 : 0;
        default: return a * b;
    }
}

s64 saturated(s64 value, u32 bits, bool sign) {
    const s64 lowest = sign ? -(s64{1} << (bits - 1)) : 0;
    const s64 highest = (s64{1} << (sign ? bits - 1 : bits)) - 1;
    return std::clamp(value, lowest, highest);
}

u32 merged(u32 c, u32 value, u8 merge) {
    if (merge == 0) {
        return value;
    }
    const u32 bits = merge <= 4 ? 8 : 16, at = merge <= 4 ? 8U * (merge - 1U) : 16U * (merge - 5U);
    const u32 mask = ((1U << bits) - 1) << at;
    return (c & ~mask) | (value << at & mask);
}

u32 scalar_video(const VideoForm& form, u32 a, u32 b, u32 c) {
    s64 value =
        primary(form, selected(a, form.select[0], form.is_signed[1]), selected(b, form.select[1], form.is_signed[2]));
    if (form.operation == 9) {
        // GPUs take c as signed before a shift, even if PTX calls all types unsigned.
        const bool is_signed = form.is_signed[0] || (form.shift != 0 && !form.saturate);
        value += is_signed ? s64{static_cast<s32>(c)} : s64{c};
        value >>= form.shift;
    }
    // GPUs do not saturate a sum of unsigned operands.
    const bool wraps = form.operation == 0 && !form.is_signed[0] && !form.is_signed[1] && !form.is_signed[2];
    if (form.saturate && !wraps) {
        value = saturated(value, 32, form.is_signed[0]);
    }
    const u32 result = static_cast<u32>(value);
    switch (form.secondary) {
        case 1: return result + c;
        case 2:
            return form.is_signed[0] ? static_cast<u32>(std::min(static_cast<s32>(result), static_cast<s32>(c)))
                                     : std::min(result, c);
        case 3:
            return form.is_signed[0] ? static_cast<u32>(std::max(static_cast<s32>(result), static_cast<s32>(c)))
                                     : std::max(result, c);
        default: return merged(c, result, form.merge);
    }
}

u32 packed_video(const VideoForm& form, u32 a, u32 b, u32 c) {
    const u32 bits = 32U / form.lanes;
    u32 result = 0;
    s64 sum = 0;
    for (u32 at = 0; at < 32; at += bits) {
        s64 value = primary(form, part_of(a, bits, at, form.is_signed[1]), part_of(b, bits, at, form.is_signed[2]));
        if (form.saturate) {
            value = saturated(value, bits, form.is_signed[0]);
        }
        sum += value;
        result |= (static_cast<u32>(value) & ((1U << bits) - 1)) << at;
    }
    return form.secondary == 1 ? static_cast<u32>(sum) + c : result;
}

void run_video(Warp& w, const Inst& i) {
    const VideoForm form = VideoForm::unpacked(i.imm);
    u32* d = w.reg<u32>(i.d);
    const u32* a = w.reg<u32>(i.a);
    const u32* b = w.reg<u32>(i.b);
    const u32* c = w.reg<u32>(i.c);
    for (u32 rest = w.exec; rest != 0; rest &= rest - 1) {
        const u32 l = static_cast<u32>(std::countr_zero(rest));
        d[l] = form.lanes == 0 ? scalar_video(form, a[l], b[l], c[l]) : packed_video(form, a[l], b[l], c[l]);
    }
}

// --- conversions

// Converts to tf32 in place: 10 bits of fraction.
void run_tf32(Warp& w, const Inst& i) {
    u32* d = w.reg<u32>(i.d);
    const u32* a = w.reg<u32>(i.a);
    const u8 mode = i.mode;
    for (u32 rest = w.exec; rest != 0; rest &= rest - 1) {
        const u32 l = static_cast<u32>(std::countr_zero(rest));
        u32 bits = a[l];
        if ((bits & 0x7FFFFFFF) > 0x7F800000) {
            // For ties away from zero, the GPU only cuts off the bits that the format lacks.
            const bool cut = (mode & convert_mode::kAway) != 0;
            d[l] = cut ? bits & ~0x1FFFU : 0x7FFFFFFF;
            continue;
        }
        if ((mode & convert_mode::kRelu) != 0 && bits >> 31 != 0) {
            bits = 0;
        }
        const bool finite = (bits & 0x7F800000) != 0x7F800000;
        if (finite && (mode & convert_mode::kAway) != 0) {
            bits += 0x1000;
        } else if (finite && (mode & convert_mode::kRoundMask) == convert_mode::kNearest) {
            bits += 0xFFF + (bits >> 13 & 1);
        }
        bits &= ~0x1FFFU;
        if ((mode & convert_mode::kFinite) != 0 && (bits & 0x7F800000) == 0x7F800000) {
            bits = (bits & 0x80000000) | 0x7F7FE000;
        }
        d[l] = bits;
    }
}

struct Format8 {
    int fraction_bits, lowest;
    u8 largest;  // finite
};
constexpr Format8 kE4m3{3, -6, 0x7E}, kE5m2{2, -14, 0x7B};

// Rounded to nearest. A value that is too large becomes the largest finite number.
u8 to_f8(float value, const Format8& format) {
    if (value != value) {
        return 0x7F;
    }
    const u8 sign = std::signbit(value) ? 0x80 : 0;
    const double magnitude = std::fabs(static_cast<double>(value));
    if (magnitude == 0) {
        return sign;
    }
    if (std::isinf(magnitude)) {
        return sign | format.largest;
    }
    const int exponent = std::max(std::ilogb(magnitude), format.lowest);
    if (exponent > 16) {
        return sign | format.largest;  // out of range of both formats
    }
    const auto units = static_cast<u32>(std::nearbyint(std::ldexp(magnitude, format.fraction_bits - exponent)));
    const u32 bits = units < 1U << format.fraction_bits
                         ? units
                         : units + (static_cast<u32>(exponent - format.lowest) << format.fraction_bits);
    return sign | static_cast<u8>(std::min<u32>(bits, format.largest));
}

float from_f8(u8 bits, const Format8& format) {
    const u32 fraction = bits & ((1U << format.fraction_bits) - 1);
    const int exponent = (bits & 0x7F) >> format.fraction_bits;
    const float sign = (bits & 0x80) != 0 ? -1.0F : 1.0F;
    if ((bits & 0x7F) > format.largest) {
        const bool infinite = format.fraction_bits == 2 && fraction == 0;
        return infinite ? sign * std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
    }
    const auto units = static_cast<float>(exponent == 0 ? fraction : fraction | 1U << format.fraction_bits);
    return sign * std::ldexp(units, std::max(exponent, 1) - 1 + format.lowest - format.fraction_bits);
}

template <const Format8& Format>
void run_to_f8(Warp& w, const Inst& i) {
    u16* d = w.reg<u16>(i.d);
    const float* high = w.reg<float>(i.a);
    const float* low = w.reg<float>(i.b);
    const auto relu = [&](float v) { return (i.mode & convert_mode::kRelu) != 0 && v <= 0 ? 0.0F : v; };
    for (u32 rest = w.exec; rest != 0; rest &= rest - 1) {
        const u32 l = static_cast<u32>(std::countr_zero(rest));
        d[l] = static_cast<u16>(to_f8(relu(high[l]), Format) << 8 | to_f8(relu(low[l]), Format));
    }
}

template <const Format8& Format>
void run_half_to_f8(Warp& w, const Inst& i) {
    u16* d = w.reg<u16>(i.d);
    const u32* a = w.reg<u32>(i.a);
    const auto relu = [&](float v) { return (i.mode & convert_mode::kRelu) != 0 && v <= 0 ? 0.0F : v; };
    for (u32 rest = w.exec; rest != 0; rest &= rest - 1) {
        const u32 l = static_cast<u32>(std::countr_zero(rest));
        const u8 high = to_f8(relu(half_to_float(static_cast<u16>(a[l] >> 16))), Format);
        const u8 low = to_f8(relu(half_to_float(static_cast<u16>(a[l]))), Format);
        d[l] = static_cast<u16>(high << 8 | low);
    }
}

template <const Format8& Format>
void run_from_f8(Warp& w, const Inst& i) {
    u32* d = w.reg<u32>(i.d);
    const u16* a = w.reg<u16>(i.a);
    const auto half = [&](u8 bits) {
        const float v = from_f8(bits, Format);
        return u32{to_half(static_cast<double>((i.mode & convert_mode::kRelu) != 0 && v <= 0 ? 0.0F : v)).bits};
    };
    for (u32 rest = w.exec; rest != 0; rest &= rest - 1) {
        const u32 l = static_cast<u32>(std::countr_zero(rest));
        d[l] = half(static_cast<u8>(a[l])) | half(static_cast<u8>(a[l] >> 8)) << 16;
    }
}

template <int Bits, bool Sign>
u32 pack_saturated(s32 a, s32 b, u32 c) {
    const u32 mask = (1U << Bits) - 1;
    const u32 high = static_cast<u32>(saturated(a, Bits, Sign)) & mask;
    const u32 low = static_cast<u32>(saturated(b, Bits, Sign)) & mask;
    return (Bits == 16 ? 0 : c << 2 * Bits % 32) | high << Bits | low;
}

void register_conversions(OpTable& t) {
    t.add({"cvt.tf32.f32"}, {run_tf32, Slot::bits32, {Slot::float32}});
    t.add({"cvt.e4m3x2.f32"}, {run_to_f8<kE4m3>, Slot::bits16, {Slot::float32, Slot::float32}});
    t.add({"cvt.e5m2x2.f32"}, {run_to_f8<kE5m2>, Slot::bits16, {Slot::float32, Slot::float32}});
    t.add({"cvt.e4m3x2.f16x2"}, {run_half_to_f8<kE4m3>, Slot::bits16, {Slot::bits32}});
    t.add({"cvt.e5m2x2.f16x2"}, {run_half_to_f8<kE5m2>, Slot::bits16, {Slot::bits32}});
    t.add({"cvt.f16x2.e4m3x2"}, {run_from_f8<kE4m3>, Slot::bits32, {Slot::bits16}});
    t.add({"cvt.f16x2.e5m2x2"}, {run_from_f8<kE5m2>, Slot::bits32, {Slot::bits16}});
    t.add({"cvt.pack.sat.u16.s32"},
          binary<u32, s32, s32>([](s32 a, s32 b) { return pack_saturated<16, false>(a, b, 0); }));
    t.add({"cvt.pack.sat.s16.s32"},
          binary<u32, s32, s32>([](s32 a, s32 b) { return pack_saturated<16, true>(a, b, 0); }));
#define PACK(name, bits, sign)               \
    t.add({"cvt.pack.sat." name ".s32.b32"}, \
          ternary<u32, s32, s32, u32>([](s32 a, s32 b, u32 c) { return pack_saturated<bits, sign>(a, b, c); }));
    PACK("u8", 8, false)
    PACK("s8", 8, true)
    PACK("u4", 4, false)
    PACK("s4", 4, true)
    PACK("u2", 2, false)
    PACK("s2", 2, true)
#undef PACK
}

// --- alloca

void run_stack_take(Warp& w, const Inst& i) {
    const u64* size = w.reg<u64>(i.a);
    u64* d = w.reg<u64>(i.d);
    const u64 floor = u64{w.current.frame->local_base_bytes} + w.current.frame->function->local_bytes;
    for (u32 rest = w.exec; rest != 0; rest &= rest - 1) {
        const u32 l = static_cast<u32>(std::countr_zero(rest));
        const u64 top = w.stack_top[l];
        if (size[l] > top || ((top - size[l]) & ~(i.imm - 1)) < floor) {
            return w.raise(FaultKind::stack_overflow, i, size[l], "alloca beyond the thread's stack");
        }
        w.stack_top[l] = static_cast<u32>((top - size[l]) & ~(i.imm - 1));
        d[l] = w.stack_top[l];
    }
}

void run_stack_save(Warp& w, const Inst& i) {
    u64* d = w.reg<u64>(i.d);
    each_lane(w.exec, [&](u32 l) { d[l] = w.stack_top[l]; });
}

void run_stack_restore(Warp& w, const Inst& i) {
    const u64* a = w.reg<u64>(i.a);
    for (u32 rest = w.exec; rest != 0; rest &= rest - 1) {
        const u32 l = static_cast<u32>(std::countr_zero(rest));
        w.stack_top[l] = static_cast<u32>(std::min<u64>(a[l], w.local_stride_bytes));
    }
}

}  // namespace

void register_packed(OpTable& t) {
    register_pairs(t);
    register_conversions(t);
    t.add({"video"}, {run_video, Slot::bits32, {Slot::bits32, Slot::bits32, Slot::bits32}});
    t.add({"stack.take"}, {run_stack_take, Slot::bits64, {Slot::bits64}, Slot::none, Flow::checked});
    t.add({"stack.save"}, {run_stack_save, Slot::bits64, {}});
    t.add({"stack.restore"}, {run_stack_restore, Slot::none, {Slot::bits64}});
}

}  // namespace gpupool::softgpu::GPUPOOL_SOFTGPU_ISA
