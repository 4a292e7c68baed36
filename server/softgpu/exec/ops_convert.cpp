// cvt between all pairs of scalar types. The lowering looks up "cvt.<to>.<from>" and sets rounding and flags in
// Inst::mode. 8-bit values are in 16-bit slots.
#include <algorithm>
#include <limits>

#include "server/softgpu/exec/convert_mode.h"
#include "server/softgpu/exec/half.h"

namespace gpupool::softgpu::GPUPOOL_SOFTGPU_ISA {
namespace {

using s128 = __int128;

template <class T>
constexpr bool is_half = std::is_same_v<T, Half> || std::is_same_v<T, Bfloat>;
template <class T>
constexpr bool is_real = std::is_floating_point_v<T> || is_half<T>;

// The element type of the slot that contains a T.
template <class T>
using Element =
    std::conditional_t<sizeof(T) == 1, std::conditional_t<std::is_signed_v<T>, std::int16_t, std::uint16_t>, T>;

inline Round rounding(std::uint8_t mode) {
    return static_cast<Round>(mode & convert_mode::kRoundMask);
}

inline double to_integral(double value, Round round) {
    switch (round) {
        case Round::nearest: return std::nearbyint(value);
        case Round::zero: return std::trunc(value);
        case Round::down: return std::floor(value);
        case Round::up: return std::ceil(value);
    }
    return value;
}

// Out of range gives the nearest limit. NaN gives zero between types of at most 32 bits, and the top bit alone if
// either type has 64 bits.
template <class D, class A>
D real_to_integer(double value, Round round) {
    constexpr bool kIsWide = std::is_same_v<A, double> || sizeof(D) == 8;
    if (value != value) {
        return kIsWide ? static_cast<D>(std::uint64_t{1} << (8 * sizeof(D) - 1)) : D{0};
    }
    value = to_integral(value, round);
    constexpr D kLowest = std::numeric_limits<D>::min();
    constexpr D kHighest = std::numeric_limits<D>::max();
    if (value <= static_cast<double>(kLowest)) {
        return kLowest;
    }
    if (value >= static_cast<double>(kHighest)) {
        return kHighest;
    }
    return static_cast<D>(value);
}

template <class D>
D narrow(double value, Round round) {
    if constexpr (std::is_same_v<D, Half>) {
        return to_half(value, round);
    }
    if constexpr (std::is_same_v<D, Bfloat>) {
        return to_bfloat(value, round);
    }
    if constexpr (std::is_same_v<D, double>) {
        return value;
    }
    if constexpr (std::is_same_v<D, float>) {
        const ScopedRounding scope(round);
        return opaque(static_cast<float>(opaque(value)));
    }
}

// An f64 NaN in a narrower format keeps its sign and upper bits, made quiet. Other formats have only one NaN.
template <class D, class A>
D narrow_nan(double value) {
    if constexpr (std::is_same_v<D, float>) {
        const auto result = static_cast<float>(value);
        return std::is_same_v<A, double> ? result : canonical(result);
    } else if constexpr (is_half<D>) {
        if (!std::is_same_v<A, double>) {
            return {0x7FFF};
        }
        constexpr int kFractionBits = std::is_same_v<D, Half> ? 10 : 7;
        const auto bits = std::bit_cast<std::uint64_t>(value);
        const auto fraction = static_cast<std::uint16_t>((bits & 0xFFFFFFFFFFFFFU) >> (52 - kFractionBits));
        constexpr std::uint16_t kQuietBits = 0x7FFF & ~((1 << (kFractionBits - 1)) - 1);
        return {static_cast<std::uint16_t>((bits >> 48 & 0x8000) | kQuietBits | fraction)};
    } else {
        return quiet(value);
    }
}

// Converts an integer to a double that rounds to 16 bits like the integer itself: bits beyond 53 only make it inexact.
template <class A>
double sticky_double(A value) {
    if constexpr (sizeof(A) < 8) {
        return static_cast<double>(value);
    } else {
        std::uint64_t magnitude = value < 0 ? 0 - static_cast<std::uint64_t>(value) : static_cast<std::uint64_t>(value);
        if (magnitude >> 53 != 0 && (magnitude & 0x7FF) != 0) {
            magnitude = (magnitude & ~std::uint64_t{0x7FF}) | 0x800;
        }
        const auto result = static_cast<double>(magnitude);
        return value < 0 ? -result : result;
    }
}

template <class D, class A>
D integer_to_real(A value, Round round) {
    if constexpr (is_half<D>) {
        return narrow<D>(sticky_double(value), round);
    } else {
        // The compiler converts u64 as the sum of two halves, which rounds twice in the directed modes. Split it such
        // that only the last step is inexact.
        const ScopedRounding scope(round);
        if constexpr (std::is_same_v<A, std::uint64_t>) {
            const double high = static_cast<double>(static_cast<std::int64_t>(value >> 32)) * 4294967296.0;
            const double low = static_cast<double>(static_cast<std::int64_t>(value & 0xFFFFFFFF));
            if constexpr (std::is_same_v<D, double>) {
                return opaque(opaque(high) + opaque(low));
            }
            if (value >> 63 == 0) {
                return opaque(static_cast<D>(static_cast<std::int64_t>(value)));
            }
            // Halve with a sticky lowest bit; doubling the result is exact.
            const auto half = static_cast<std::int64_t>(value >> 1 | (value & 1));
            return opaque(static_cast<D>(half)) * D{2};
        } else {
            volatile A exact = value;  // read inside the rounding scope
            return opaque(static_cast<D>(exact));
        }
    }
}

template <class D, class A>
Element<D> convert_one(Element<A> raw, std::uint8_t mode) {
    if constexpr (is_real<A>) {
        double value = to_double(raw);
        if (std::is_same_v<A, float> && (mode & convert_mode::kFlush) != 0) {
            value = canonical(flush(static_cast<float>(value)));
        }
        if constexpr (!is_real<D>) {
            return real_to_integer<D, A>(value, rounding(mode));
        } else {
            if ((mode & convert_mode::kIntegral) != 0) {
                value = to_integral(value, rounding(mode));
            }
            if ((mode & convert_mode::kSaturate) != 0) {
                value = saturate_unit(value);
            }
            if ((mode & convert_mode::kRelu) != 0) {
                value = value > 0 || value != value ? value : 0.0;
            }
            if (value != value) {
                return narrow_nan<D, A>(value);
            }
            D result = narrow<D>(value, (mode & convert_mode::kIntegral) != 0 ? Round::nearest : rounding(mode));
            if constexpr (std::is_same_v<D, float>) {
                if ((mode & convert_mode::kFlush) != 0) {
                    result = flush(result);
                }
            }
            return result;
        }
    } else if constexpr (is_real<D>) {
        auto result = integer_to_real<D, A>(static_cast<A>(raw), rounding(mode));
        if ((mode & convert_mode::kSaturate) != 0) {
            result = narrow<D>(saturate_unit(to_double(result)), Round::nearest);
        }
        return result;
    } else {
        const A value = static_cast<A>(raw);
        if ((mode & convert_mode::kSaturate) == 0) {
            return static_cast<Element<D>>(static_cast<D>(value));
        }
        return static_cast<Element<D>>(static_cast<D>(
            std::clamp<s128>(s128{value}, s128{std::numeric_limits<D>::min()}, s128{std::numeric_limits<D>::max()})));
    }
}

// Conversions that C++ does as PTX does in its default mode use a loop that vectorises.
template <class D, class A>
constexpr bool is_plain_cast = (!is_real<A> && !is_real<D>) || (!is_real<A> && std::is_floating_point_v<D>) ||
                               (std::is_same_v<A, float> && std::is_same_v<D, double>);

template <class D, class A>
void run_convert(Warp& w, const Inst& i) {
    auto* d = w.reg<Element<D>>(i.d);
    const auto* a = w.reg<Element<A>>(i.a);
    const std::uint8_t mode = i.mode;
    if constexpr (is_plain_cast<D, A>) {
        if (mode == convert_mode::kNearest) {
            each_lane(w.exec,
                      [=](std::uint32_t l) { d[l] = static_cast<Element<D>>(static_cast<D>(static_cast<A>(a[l]))); });
            return;
        }
    }
    if constexpr (std::is_same_v<A, Bfloat> && std::is_same_v<D, float>) {
        // A bf16's bits above sixteen zero bits, even for a NaN.
        if (mode == convert_mode::kNearest) {
            each_lane(w.exec, [=](std::uint32_t l) { d[l] = std::bit_cast<float>(std::uint32_t{a[l].bits} << 16); });
            return;
        }
    }
    for (std::uint32_t rest = w.exec; rest != 0; rest &= rest - 1) {
        const auto l = static_cast<std::uint32_t>(std::countr_zero(rest));
        d[l] = convert_one<D, A>(a[l], mode);
    }
}

template <class T>
constexpr Slot convert_slot() {
    return is_half<T> ? Slot::bits16 : slot_of<Element<T>>();
}

template <class D, class A>
Op convert() {
    return {run_convert<D, A>, convert_slot<D>(), {convert_slot<A>()}};
}

#define TO(D, name, A, from) t.add({"cvt." name "." from}, convert<D, A>());
#define TO_ALL(A, from)               \
    TO(std::uint8_t, "u8", A, from)   \
    TO(std::int8_t, "s8", A, from)    \
    TO(std::uint16_t, "u16", A, from) \
    TO(std::int16_t, "s16", A, from)  \
    TO(std::uint32_t, "u32", A, from) \
    TO(std::int32_t, "s32", A, from)  \
    TO(std::uint64_t, "u64", A, from) \
    TO(std::int64_t, "s64", A, from)  \
    TO(Half, "f16", A, from) TO(Bfloat, "bf16", A, from) TO(float, "f32", A, from) TO(double, "f64", A, from)

template <class T, T Encode(double, Round)>
void run_pack(Warp& w, const Inst& i) {
    auto* d = w.reg<std::uint32_t>(i.d);
    const float* high = w.reg<float>(i.a);
    const float* low = w.reg<float>(i.b);
    const auto relu = [&](float v) { return (i.mode & convert_mode::kRelu) != 0 && v <= 0 ? 0.0F : v; };
    for (std::uint32_t rest = w.exec; rest != 0; rest &= rest - 1) {
        const auto l = static_cast<std::uint32_t>(std::countr_zero(rest));
        d[l] = static_cast<std::uint32_t>(Encode(relu(high[l]), rounding(i.mode)).bits) << 16 |
               Encode(relu(low[l]), rounding(i.mode)).bits;
    }
}

}  // namespace

void register_convert(OpTable& t) {
    TO_ALL(std::uint8_t, "u8")
    TO_ALL(std::int8_t, "s8")
    TO_ALL(std::uint16_t, "u16")
    TO_ALL(std::int16_t, "s16")
    TO_ALL(std::uint32_t, "u32")
    TO_ALL(std::int32_t, "s32")
    TO_ALL(std::uint64_t, "u64")
    TO_ALL(std::int64_t, "s64")
    TO_ALL(Half, "f16")
    TO_ALL(Bfloat, "bf16")
    TO_ALL(float, "f32")
    TO_ALL(double, "f64")
    t.add({"cvt.f16x2.f32"}, {run_pack<Half, to_half>, Slot::bits32, {Slot::float32, Slot::float32}});
    t.add({"cvt.bf16x2.f32"}, {run_pack<Bfloat, to_bfloat>, Slot::bits32, {Slot::float32, Slot::float32}});
}

}  // namespace gpupool::softgpu::GPUPOOL_SOFTGPU_ISA
