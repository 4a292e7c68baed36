// f64 arithmetic in PTX's rounding modes.
#include "server/softgpu/exec/float_ops.h"

namespace gpupool::softgpu::GPUPOOL_SOFTGPU_ISA {
namespace {

#define ROUNDED(rounding, R)                                                                              \
    t.add({"add" rounding ".f64"}, op2<double>(run_float_binary<double, Add, R, false, false>));          \
    t.add({"sub" rounding ".f64"}, op2<double>(run_float_binary<double, Subtract, R, false, false>));     \
    t.add({"mul" rounding ".f64"}, op2<double>(run_float_binary<double, Multiply, R, false, false>));     \
    t.add({"div" rounding ".f64"}, op2<double>(run_float_binary<double, Divide, R, false, false>));       \
    t.add({"fma" rounding ".f64", "mad" rounding ".f64"}, op3<double>(run_fma<double, R, false, false>)); \
    t.add({"sqrt" rounding ".f64"}, op1<double>(run_sqrt<double, R, false>));                             \
    t.add({"rcp" rounding ".f64"}, op1<double>(run_rcp<double, R, false>));

// The approximations keep the upper 32 bits of argument and result. A NaN whose upper bits alone are an infinity
// becomes NaN again.
double upper(double value) {
    const auto kept = std::bit_cast<double>(std::bit_cast<std::uint64_t>(value) & 0xFFFFFFFF00000000ULL);
    return kept != kept ? std::bit_cast<double>(0x7FFFFFFF00000000ULL) : kept;
}

double flush64(double value) {
    return std::fabs(value) < std::numeric_limits<double>::min() ? std::copysign(0.0, value) : value;
}

}  // namespace

void register_float64(OpTable& t) {
    ROUNDED(".rn", Round::nearest)
    ROUNDED(".rz", Round::zero)
    ROUNDED(".rm", Round::down)
    ROUNDED(".rp", Round::up)
    t.add({"add.f64"}, op2<double>(run_float_binary<double, Add, Round::nearest, false, false>));
    t.add({"sub.f64"}, op2<double>(run_float_binary<double, Subtract, Round::nearest, false, false>));
    t.add({"mul.f64"}, op2<double>(run_float_binary<double, Multiply, Round::nearest, false, false>));
    t.add({"min.f64"}, binary<double, double, double>([](double a, double b) { return choose<false, false>(a, b); }));
    t.add({"max.f64"}, binary<double, double, double>([](double a, double b) { return choose<true, false>(a, b); }));
    t.add({"abs.f64"}, unary<double, double>([](double a) { return a != a ? quiet(a) : std::fabs(a); }));
    t.add({"neg.f64"}, unary<double, double>([](double a) { return a != a ? quiet(a) : -a; }));
    t.add({"copysign.f64"}, binary<double, double, double>([](double a, double b) { return std::copysign(b, a); }));
    t.add({"rcp.approx.ftz.f64"},
          unary<double, double>([](double a) { return upper(flush64(1.0 / upper(flush64(a)))); }));
    t.add({"rsqrt.approx.ftz.f64"},
          unary<double, double>([](double a) { return upper(flush64(1.0 / std::sqrt(upper(flush64(a))))); }));
    t.add({"rsqrt.approx.f64"}, unary<double, double>([](double a) { return 1.0 / std::sqrt(a); }));
}

}  // namespace gpupool::softgpu::GPUPOOL_SOFTGPU_ISA
