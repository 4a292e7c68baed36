// f32 arithmetic: each operation in PTX's rounding modes, with and without .ftz and .sat.
#include "server/softgpu/exec/float_ops.h"

namespace gpupool::softgpu::GPUPOOL_SOFTGPU_ISA {
namespace {

#define BINARY_MODES(name, F, rounding, R)                                                     \
    t.add({name rounding ".f32"}, op2<float>(run_float_binary<float, F, R, false, false>));    \
    t.add({name rounding ".ftz.f32"}, op2<float>(run_float_binary<float, F, R, true, false>)); \
    t.add({name rounding ".sat.f32"}, op2<float>(run_float_binary<float, F, R, false, true>)); \
    t.add({name rounding ".ftz.sat.f32"}, op2<float>(run_float_binary<float, F, R, true, true>));

#define FMA_MODES(name, rounding, R)                                               \
    t.add({name rounding ".f32"}, op3<float>(run_fma<float, R, false, false>));    \
    t.add({name rounding ".ftz.f32"}, op3<float>(run_fma<float, R, true, false>)); \
    t.add({name rounding ".sat.f32"}, op3<float>(run_fma<float, R, false, true>)); \
    t.add({name rounding ".ftz.sat.f32"}, op3<float>(run_fma<float, R, true, true>));

#define UNARY_MODES(name, run, rounding, R)                          \
    t.add({name rounding ".f32"}, op1<float>(run<float, R, false>)); \
    t.add({name rounding ".ftz.f32"}, op1<float>(run<float, R, true>));

#define ALL_ROUNDINGS(MODES, ...)             \
    MODES(__VA_ARGS__, ".rn", Round::nearest) \
    MODES(__VA_ARGS__, ".rz", Round::zero)    \
    MODES(__VA_ARGS__, ".rm", Round::down)    \
    MODES(__VA_ARGS__, ".rp", Round::up)

void register_rounded(OpTable& t) {
    ALL_ROUNDINGS(BINARY_MODES, "add", Add)
    BINARY_MODES("add", Add, "", Round::nearest)
    ALL_ROUNDINGS(BINARY_MODES, "sub", Subtract)
    BINARY_MODES("sub", Subtract, "", Round::nearest)
    ALL_ROUNDINGS(BINARY_MODES, "mul", Multiply)
    BINARY_MODES("mul", Multiply, "", Round::nearest)
    ALL_ROUNDINGS(BINARY_MODES, "div", Divide)
    ALL_ROUNDINGS(FMA_MODES, "fma")
    ALL_ROUNDINGS(FMA_MODES, "mad")
    // The form of PTX for GPUs before compute capability 2.0, which is still valid.
    t.add({"mad.f32"}, op3<float>(run_fma<float, Round::nearest, true, false>));
    t.add({"mad.sat.f32"}, op3<float>(run_fma<float, Round::nearest, true, true>));
    ALL_ROUNDINGS(UNARY_MODES, "sqrt", run_sqrt)
    ALL_ROUNDINGS(UNARY_MODES, "rcp", run_rcp)
}

template <bool Ftz>
void register_ordered(OpTable& t, std::string_view min, std::string_view max, std::string_view min_nan,
                      std::string_view max_nan) {
    t.add({min}, binary<float, float, float>([](float a, float b) {
              return choose<false, false>(input<float, Ftz>(a), input<float, Ftz>(b));
          }));
    t.add({max}, binary<float, float, float>(
                     [](float a, float b) { return choose<true, false>(input<float, Ftz>(a), input<float, Ftz>(b)); }));
    t.add({min_nan}, binary<float, float, float>([](float a, float b) {
              return choose<false, true>(input<float, Ftz>(a), input<float, Ftz>(b));
          }));
    t.add({max_nan}, binary<float, float, float>([](float a, float b) {
              return choose<true, true>(input<float, Ftz>(a), input<float, Ftz>(b));
          }));
}

}  // namespace

void register_float32(OpTable& t) {
    register_rounded(t);
    register_ordered<false>(t, "min.f32", "max.f32", "min.NaN.f32", "max.NaN.f32");
    register_ordered<true>(t, "min.ftz.f32", "max.ftz.f32", "min.ftz.NaN.f32", "max.ftz.NaN.f32");
    t.add({"min.xorsign.abs.f32"},
          binary<float, float, float>([](float a, float b) { return choose_xorsign<false, false>(a, b); }));
    t.add({"max.xorsign.abs.f32"},
          binary<float, float, float>([](float a, float b) { return choose_xorsign<true, false>(a, b); }));
    t.add({"min.NaN.xorsign.abs.f32"},
          binary<float, float, float>([](float a, float b) { return choose_xorsign<false, true>(a, b); }));
    t.add({"max.NaN.xorsign.abs.f32"},
          binary<float, float, float>([](float a, float b) { return choose_xorsign<true, true>(a, b); }));
    t.add({"min.ftz.xorsign.abs.f32"}, binary<float, float, float>([](float a, float b) {
              return choose_xorsign<false, false>(flush(a), flush(b));
          }));
    t.add({"max.ftz.xorsign.abs.f32"}, binary<float, float, float>([](float a, float b) {
              return choose_xorsign<true, false>(flush(a), flush(b));
          }));
    t.add({"min.ftz.NaN.xorsign.abs.f32"}, binary<float, float, float>([](float a, float b) {
              return choose_xorsign<false, true>(flush(a), flush(b));
          }));
    t.add({"max.ftz.NaN.xorsign.abs.f32"},
          binary<float, float, float>([](float a, float b) { return choose_xorsign<true, true>(flush(a), flush(b)); }));
    t.add({"abs.f32"}, unary<float, float>([](float a) { return canonical(std::fabs(a)); }));
    t.add({"neg.f32"}, unary<float, float>([](float a) { return canonical(-a); }));
    t.add({"abs.ftz.f32"}, unary<float, float>([](float a) { return canonical(std::fabs(flush(a))); }));
    t.add({"neg.ftz.f32"}, unary<float, float>([](float a) { return canonical(-flush(a)); }));
    // PTX: copysign d, a, b gives b's magnitude with a's sign.
    t.add({"copysign.f32"}, binary<float, float, float>([](float a, float b) { return std::copysign(b, a); }));
}

}  // namespace gpupool::softgpu::GPUPOOL_SOFTGPU_ISA
