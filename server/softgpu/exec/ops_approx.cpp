// The approximate f32 functions. They are computed in f64 and rounded once, well within PTX's stated error.
#include "server/softgpu/exec/rounding.h"

namespace gpupool::softgpu::GPUPOOL_SOFTGPU_ISA {
namespace {

template <bool Ftz, class F>
void run_approx(Warp& w, const Inst& i) {
    float* d = w.reg<float>(i.d);
    const float* a = w.reg<float>(i.a);
    each_lane(w.exec, [=](std::uint32_t l) {
        d[l] = output<float, Ftz, false>(static_cast<float>(F{}(static_cast<double>(input<float, Ftz>(a[l])))));
    });
}

template <bool Ftz>
void run_approx_divide(Warp& w, const Inst& i) {
    float* d = w.reg<float>(i.d);
    const float* a = w.reg<float>(i.a);
    const float* b = w.reg<float>(i.b);
    each_lane(w.exec, [=](std::uint32_t l) {
        d[l] = output<float, Ftz, false>(input<float, Ftz>(a[l]) / input<float, Ftz>(b[l]));
    });
}

template <class F>
void add_approx(OpTable& t, std::string_view plain, std::string_view flushed, F) {
    t.add({plain}, {run_approx<false, F>, Slot::float32, {Slot::float32}});
    t.add({flushed}, {run_approx<true, F>, Slot::float32, {Slot::float32}});
}

}  // namespace

void register_approx(OpTable& t) {
    add_approx(t, "rcp.approx.f32", "rcp.approx.ftz.f32", [](double a) { return 1.0 / a; });
    add_approx(t, "sqrt.approx.f32", "sqrt.approx.ftz.f32", [](double a) { return std::sqrt(a); });
    add_approx(t, "rsqrt.approx.f32", "rsqrt.approx.ftz.f32", [](double a) { return 1.0 / std::sqrt(a); });
    add_approx(t, "sin.approx.f32", "sin.approx.ftz.f32", [](double a) { return std::sin(a); });
    add_approx(t, "cos.approx.f32", "cos.approx.ftz.f32", [](double a) { return std::cos(a); });
    add_approx(t, "lg2.approx.f32", "lg2.approx.ftz.f32", [](double a) { return std::log2(a); });
    add_approx(t, "ex2.approx.f32", "ex2.approx.ftz.f32", [](double a) { return std::exp2(a); });
    add_approx(t, "tanh.approx.f32", "tanh.approx.ftz.f32", [](double a) { return std::tanh(a); });
    for (const auto name : {"div.approx.f32", "div.full.f32"}) {
        t.add({name}, {run_approx_divide<false>, Slot::float32, {Slot::float32, Slot::float32}});
    }
    for (const auto name : {"div.approx.ftz.f32", "div.full.ftz.f32"}) {
        t.add({name}, {run_approx_divide<true>, Slot::float32, {Slot::float32, Slot::float32}});
    }
}

}  // namespace gpupool::softgpu::GPUPOOL_SOFTGPU_ISA
