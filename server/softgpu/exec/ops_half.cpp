// f16, bf16 and their pairs: computed in f64 and rounded to the format, which is exact for add, sub and mul; an fma can
// differ in the last place where rounding to f64 itself made the tie.
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

using u16 = std::uint16_t;
using u32 = std::uint32_t;

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
    half3<T>(t, {"fma.rn." n}, {"fma.rn." n "x2"}, [](double a, double b, double c) { return fused(a, b, c); });     \
    half3<T>(t, {"fma.rn.relu." n}, {"fma.rn.relu." n "x2"}, [](double a, double b, double c) {                      \
        const double v = fused(a, b, c);                                                                             \
        return v > 0 || v != v ? v : 0.0;                                                                            \
    });                                                                                                              \
    half2<T>(t, {"min." n}, {"min." n "x2"}, [](double a, double b, double) { return choose<false, false>(a, b); }); \
    half2<T>(t, {"max." n}, {"max." n "x2"}, [](double a, double b, double) { return choose<true, false>(a, b); });  \
    half2<T>(t, {"min.NaN." n}, {"min.NaN." n "x2"},                                                                 \
             [](double a, double b, double) { return choose<false, true>(a, b); });                                  \
    half2<T>(t, {"max.NaN." n}, {"max.NaN." n "x2"},                                                                 \
             [](double a, double b, double) { return choose<true, true>(a, b); });                                   \
    half1<T>(t, {"ex2.approx." n, "ex2.approx.ftz." n}, {"ex2.approx." n "x2", "ex2.approx.ftz." n "x2"},            \
             [](double a, double, double) { return std::exp2(a); });                                                 \
    half1<T>(t, {"tanh.approx." n}, {"tanh.approx." n "x2"}, [](double a, double, double) { return std::tanh(a); }); \
    t.add({"abs." n}, unary<u16, u16>([](u16 a) { return static_cast<u16>(a & 0x7FFF); }));                          \
    t.add({"neg." n}, unary<u16, u16>([](u16 a) { return static_cast<u16>(a ^ 0x8000); }));                          \
    t.add({"abs." n "x2"}, unary<u32, u32>([](u32 a) { return a & 0x7FFF7FFF; }));                                   \
    t.add({"neg." n "x2"}, unary<u32, u32>([](u32 a) { return a ^ 0x80008000; }));

// setp on halves; the pair forms (two results) are not here.
template <class T, class F>
void run_half_compare(Warp& w, const Inst& i) {
    const u16* a = w.reg<u16>(i.a);
    const u16* b = w.reg<u16>(i.b);
    u32 result = 0;
    for (u32 rest = w.exec; rest != 0; rest &= rest - 1) {
        const auto l = static_cast<u32>(std::countr_zero(rest));
        if (F{}(to_double(T{a[l]}), to_double(T{b[l]}))) result |= 1U << l;
    }
    set_pred(w, i.d, result);
}

template <class T, class F>
void half_compare(OpTable& t, std::string_view name, F) {
    t.add({name}, {run_half_compare<T, F>, Slot::pred, {Slot::bits16, Slot::bits16}});
}

#define HALF_COMPARES(T, n)                                                                  \
    half_compare<T>(t, "setp.eq." n, [](double a, double b) { return a == b; });             \
    half_compare<T>(t, "setp.ne." n, [](double a, double b) { return a < b || a > b; });     \
    half_compare<T>(t, "setp.lt." n, [](double a, double b) { return a < b; });              \
    half_compare<T>(t, "setp.le." n, [](double a, double b) { return a <= b; });             \
    half_compare<T>(t, "setp.gt." n, [](double a, double b) { return a > b; });              \
    half_compare<T>(t, "setp.ge." n, [](double a, double b) { return a >= b; });             \
    half_compare<T>(t, "setp.equ." n, [](double a, double b) { return !(a < b || a > b); }); \
    half_compare<T>(t, "setp.neu." n, [](double a, double b) { return a != b; });            \
    half_compare<T>(t, "setp.ltu." n, [](double a, double b) { return !(a >= b); });         \
    half_compare<T>(t, "setp.leu." n, [](double a, double b) { return !(a > b); });          \
    half_compare<T>(t, "setp.gtu." n, [](double a, double b) { return !(a <= b); });         \
    half_compare<T>(t, "setp.geu." n, [](double a, double b) { return !(a < b); });          \
    half_compare<T>(t, "setp.nan." n, [](double a, double b) { return a != a || b != b; });  \
    half_compare<T>(t, "setp.num." n, [](double a, double b) { return a == a && b == b; });

}  // namespace

void register_half(OpTable& t) {
    HALF_TYPE(Half, "f16")
    HALF_TYPE(Bfloat, "bf16")
    HALF_COMPARES(Half, "f16")
    HALF_COMPARES(Bfloat, "bf16")
}

}  // namespace gpupool::softgpu::GPUPOOL_SOFTGPU_ISA
