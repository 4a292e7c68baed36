// f16, bf16 and pairs of them: computed in f64 and rounded once to the format. Products are always exact, sums are
// exact where they could be near a tie, and an fma is rounded to odd first.
#include "server/softgpu/exec/float_ops.h"
#include "server/softgpu/exec/half.h"

namespace gpupool::softgpu::GPUPOOL_SOFTGPU_ISA {
namespace {

inline Half make(Half*, double v) {
    return to_half(v);
}
inline Bfloat make(Bfloat*, double v) {
    return to_bfloat(v);
}

template <class T, class F>
std::uint16_t apply(std::uint16_t a, std::uint16_t b, std::uint16_t c) {
    return make(static_cast<T*>(nullptr), F{}(to_double(T{a}), to_double(T{b}), to_double(T{c}))).bits;
}

template <class T, class F>
std::uint32_t apply_pair(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
    const auto half = [](std::uint32_t v, int n) { return static_cast<std::uint16_t>(v >> 16 * n); };
    return std::uint32_t{apply<T, F>(half(a, 0), half(b, 0), half(c, 0))} |
           std::uint32_t{apply<T, F>(half(a, 1), half(b, 1), half(c, 1))} << 16;
}

template <class T, class F>
void half1(OpTable& t, std::initializer_list<std::string_view> one, std::initializer_list<std::string_view> pair, F) {
    t.add(one, unary<u16, u16>([](u16 a) { return apply<T, F>(a, 0, 0); }));
    t.add(pair, unary<u32, u32>([](u32 a) { return apply_pair<T, F>(a, 0, 0); }));
}
template <class T, class F>
void half2(OpTable& t, std::initializer_list<std::string_view> one, std::initializer_list<std::string_view> pair, F) {
    t.add(one, binary<u16, u16, u16>([](u16 a, u16 b) { return apply<T, F>(a, b, 0); }));
    t.add(pair, binary<u32, u32, u32>([](u32 a, u32 b) { return apply_pair<T, F>(a, b, 0); }));
}
template <class T, class F>
void half3(OpTable& t, std::initializer_list<std::string_view> one, std::initializer_list<std::string_view> pair, F) {
    t.add(one, ternary<u16, u16, u16, u16>([](u16 a, u16 b, u16 c) { return apply<T, F>(a, b, c); }));
    t.add(pair, ternary<u32, u32, u32, u32>([](u32 a, u32 b, u32 c) { return apply_pair<T, F>(a, b, c); }));
}

#define HALF_TYPE(T, n)                                                                                              \
    half2<T>(t, {"add." n, "add.rn." n}, {"add." n "x2", "add.rn." n "x2"},                                          \
             [](double a, double b, double) { return a + b; });                                                      \
    half2<T>(t, {"sub." n, "sub.rn." n}, {"sub." n "x2", "sub.rn." n "x2"},                                          \
             [](double a, double b, double) { return a - b; });                                                      \
    half2<T>(t, {"mul." n, "mul.rn." n}, {"mul." n "x2", "mul.rn." n "x2"},                                          \
             [](double a, double b, double) { return a * b; });                                                      \
    half3<T>(t, {"fma.rn." n}, {"fma.rn." n "x2"},                                                                   \
             [](double a, double b, double c) { return fused_to_odd(a, b, c); });                                    \
    half3<T>(t, {"fma.rn.relu." n}, {"fma.rn.relu." n "x2"}, [](double a, double b, double c) {                      \
        const double v = fused_to_odd(a, b, c);                                                                      \
        return v > 0 || v != v ? v : 0.0;                                                                            \
    });                                                                                                              \
    half2<T>(t, {"min." n}, {"min." n "x2"}, [](double a, double b, double) { return choose<false, false>(a, b); }); \
    half2<T>(t, {"max." n}, {"max." n "x2"}, [](double a, double b, double) { return choose<true, false>(a, b); });  \
    half2<T>(t, {"min.NaN." n}, {"min.NaN." n "x2"},                                                                 \
             [](double a, double b, double) { return choose<false, true>(a, b); });                                  \
    half2<T>(t, {"max.NaN." n}, {"max.NaN." n "x2"},                                                                 \
             [](double a, double b, double) { return choose<true, true>(a, b); });                                   \
    half1<T>(t, {"ex2.approx." n}, {"ex2.approx." n "x2"}, [](double a, double, double) { return std::exp2(a); });   \
    half1<T>(t, {"tanh.approx." n}, {"tanh.approx." n "x2"}, [](double a, double, double) { return std::tanh(a); }); \
    half1<T>(t, {"abs." n}, {"abs." n "x2"}, [](double a, double, double) { return std::fabs(a); });                 \
    half1<T>(t, {"neg." n}, {"neg." n "x2"}, [](double a, double, double) { return -a; });

inline double flush_f16(double v) {
    return std::fabs(v) < 0x1p-14 ? std::copysign(0.0, v) : v;
}
// A GPU with .ftz flushes a result that would be below the least normal number if it were rounded with an unlimited
// exponent range, even if normal rounding gives the least normal number.
inline double flush_f16_result(double v) {
    constexpr double kScale = 0x1p8;
    return std::fabs(to_double(to_half(v * kScale))) < 0x1p-14 * kScale ? std::copysign(0.0, v) : v;
}

void register_flushed(OpTable& t) {
    half2<Half>(t, {"mul.ftz.f16", "mul.rn.ftz.f16"}, {"mul.ftz.f16x2", "mul.rn.ftz.f16x2"},
                [](double a, double b, double) { return flush_f16_result(flush_f16(a) * flush_f16(b)); });
    half3<Half>(t, {"fma.rn.ftz.f16"}, {"fma.rn.ftz.f16x2"}, [](double a, double b, double c) {
        return flush_f16_result(fused_to_odd(flush_f16(a), flush_f16(b), flush_f16(c)));
    });
}

// setp on halves. For pairs, p compares the low halves and q the high ones.
template <class T, class F, bool Pair>
void run_half_compare(Warp& w, const Inst& i) {
    constexpr u32 kStep = Pair ? 2 : 1;
    const u16* a = w.reg<u16>(i.a);
    const u16* b = w.reg<u16>(i.b);
    u32 low = 0, high = 0;
    for (u32 rest = w.exec; rest != 0; rest &= rest - 1) {
        const auto l = static_cast<u32>(std::countr_zero(rest));
        if (F{}(to_double(T{a[l * kStep]}), to_double(T{b[l * kStep]}))) {
            low |= 1U << l;
        }
        if (Pair && F{}(to_double(T{a[l * kStep + 1]}), to_double(T{b[l * kStep + 1]}))) {
            high |= 1U << l;
        }
    }
    const u32 c = i.c == kNoSlot ? 0 : w.pred(i.c);
    const u32 p = combine(i.mode, low, c);
    const u32 q = combine(i.mode, Pair ? high : ~low, c);
    set_pred(w, i.d, p);
    set_pred(w, i.e, q);
}

template <class T, class F>
void half_compare(OpTable& t, std::string_view name, std::string_view pair, F) {
    t.add({name}, {run_half_compare<T, F, false>, Slot::pred, {Slot::bits16, Slot::bits16}, Slot::pred});
    t.add({pair}, {run_half_compare<T, F, true>, Slot::pred, {Slot::bits32, Slot::bits32}, Slot::pred});
}

// Modifiers of inputs and results.
template <class T>
u16 flush_half(u16 a) {
    constexpr u16 kExponent = std::is_same_v<T, Half> ? 0x7C00 : 0x7F80;
    return (a & kExponent) == 0 ? a & 0x8000 : a;
}
template <class T>
u16 relu_half(u16 a) {
    const double v = to_double(T{a});
    return v > 0 ? a : v != v ? u16{0x7FFF} : u16{0};
}
template <class T>
u16 saturate_half(u16 a) {
    return make(static_cast<T*>(nullptr), saturate_unit(to_double(T{a}))).bits;
}
template <class T>
u16 xorsign_half(u16 chosen, u16 a, u16 b) {
    const double v = to_double(T{chosen});
    return v != v ? chosen : static_cast<u16>((chosen & 0x7FFF) | ((a ^ b) & 0x8000));
}

template <u16 F(u16)>
u32 both_halves(u32 a) {
    return u32{F(static_cast<u16>(a))} | u32{F(static_cast<u16>(a >> 16))} << 16;
}

template <class T>
void half_modifiers(OpTable& t, std::initializer_list<std::string_view> names) {
    const std::string_view* name = names.begin();
    t.add({name[0]}, unary<u16, u16>([](u16 a) { return flush_half<T>(a); }));
    t.add({name[1]}, unary<u32, u32>([](u32 a) { return both_halves<flush_half<T>>(a); }));
    t.add({name[2]}, unary<u16, u16>([](u16 a) { return relu_half<T>(a); }));
    t.add({name[3]}, unary<u32, u32>([](u32 a) { return both_halves<relu_half<T>>(a); }));
    t.add({name[4]}, unary<u16, u16>([](u16 a) { return saturate_half<T>(a); }));
    t.add({name[5]}, unary<u32, u32>([](u32 a) { return both_halves<saturate_half<T>>(a); }));
    t.add({name[6]}, ternary<u16, u16, u16, u16>([](u16 c, u16 a, u16 b) { return xorsign_half<T>(c, a, b); }));
    t.add({name[7]}, ternary<u32, u32, u32, u32>([](u32 c, u32 a, u32 b) {
              const auto half = [&](int n) {
                  return u32{xorsign_half<T>(static_cast<u16>(c >> 16 * n), static_cast<u16>(a >> 16 * n),
                                             static_cast<u16>(b >> 16 * n))};
              };
              return half(0) | half(1) << 16;
          }));
}

#define HALF_MODIFIERS(T, n)                                                                                         \
    half_modifiers<T>(t, {"flush." n, "flush." n "x2", "relu." n, "relu." n "x2", "saturate." n, "saturate." n "x2", \
                          "xorsign." n, "xorsign." n "x2"});

#define HALF_COMPARES(T, n)                                                                                      \
    half_compare<T>(t, "setp.eq." n, "setp.eq." n "x2", [](double a, double b) { return a == b; });              \
    half_compare<T>(t, "setp.ne." n, "setp.ne." n "x2", [](double a, double b) { return a < b || a > b; });      \
    half_compare<T>(t, "setp.lt." n, "setp.lt." n "x2", [](double a, double b) { return a < b; });               \
    half_compare<T>(t, "setp.le." n, "setp.le." n "x2", [](double a, double b) { return a <= b; });              \
    half_compare<T>(t, "setp.gt." n, "setp.gt." n "x2", [](double a, double b) { return a > b; });               \
    half_compare<T>(t, "setp.ge." n, "setp.ge." n "x2", [](double a, double b) { return a >= b; });              \
    half_compare<T>(t, "setp.equ." n, "setp.equ." n "x2", [](double a, double b) { return !(a < b || a > b); }); \
    half_compare<T>(t, "setp.neu." n, "setp.neu." n "x2", [](double a, double b) { return a != b; });            \
    half_compare<T>(t, "setp.ltu." n, "setp.ltu." n "x2", [](double a, double b) { return !(a >= b); });         \
    half_compare<T>(t, "setp.leu." n, "setp.leu." n "x2", [](double a, double b) { return !(a > b); });          \
    half_compare<T>(t, "setp.gtu." n, "setp.gtu." n "x2", [](double a, double b) { return !(a <= b); });         \
    half_compare<T>(t, "setp.geu." n, "setp.geu." n "x2", [](double a, double b) { return !(a < b); });          \
    half_compare<T>(t, "setp.nan." n, "setp.nan." n "x2", [](double a, double b) { return a != a || b != b; });  \
    half_compare<T>(t, "setp.num." n, "setp.num." n "x2", [](double a, double b) { return a == a && b == b; });

}  // namespace

void register_half(OpTable& t) {
    HALF_TYPE(Half, "f16")
    HALF_TYPE(Bfloat, "bf16")
    register_flushed(t);
    HALF_MODIFIERS(Half, "f16")
    HALF_MODIFIERS(Bfloat, "bf16")
    HALF_COMPARES(Half, "f16")
    HALF_COMPARES(Bfloat, "bf16")
}

}  // namespace gpupool::softgpu::GPUPOOL_SOFTGPU_ISA
