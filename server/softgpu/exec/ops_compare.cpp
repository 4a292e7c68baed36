// setp and set: comparisons that produce predicates and values.
#include <cmath>

#include "server/softgpu/exec/lanes.h"

namespace gpupool::softgpu::GPUPOOL_SOFTGPU_ISA {
namespace {

template <class T, class F>
void run_compare(Warp& w, const Inst& i) {
    const T* a = w.reg<T>(i.a);
    const T* b = w.reg<T>(i.b);
    const std::uint32_t compared = lane_mask([=](std::uint32_t l) { return F{}(a[l], b[l]); });
    const std::uint32_t c = i.c == kNoSlot ? 0 : w.pred(i.c);
    // Compute both results before writing either, since the q of p|q may be c.
    const std::uint32_t p = combine(i.mode, compared, c);
    const std::uint32_t q = combine(i.mode, ~compared, c);
    set_pred(w, i.d, p);
    set_pred(w, i.e, q);
}

template <class T, class F>
void compare(OpTable& t, std::initializer_list<std::string_view> names, F) {
    t.add(names, {run_compare<T, F>, Slot::pred, {slot_of<T>(), slot_of<T>()}, Slot::pred});
}

#define INTEGER_COMPARES(T, name)                                                       \
    compare<T>(t, {"setp.lt." name, "setp.lo." name}, [](T a, T b) { return a < b; });  \
    compare<T>(t, {"setp.le." name, "setp.ls." name}, [](T a, T b) { return a <= b; }); \
    compare<T>(t, {"setp.gt." name, "setp.hi." name}, [](T a, T b) { return a > b; });  \
    compare<T>(t, {"setp.ge." name, "setp.hs." name}, [](T a, T b) { return a >= b; });

#define EQUALITY(T, s, u, b_)                                                                    \
    compare<T>(t, {"setp.eq." s, "setp.eq." u, "setp.eq." b_}, [](T a, T b) { return a == b; }); \
    compare<T>(t, {"setp.ne." s, "setp.ne." u, "setp.ne." b_}, [](T a, T b) { return a != b; });

#define FLOAT_COMPARES(T, name)                                                    \
    compare<T>(t, {"setp.eq." name}, [](T a, T b) { return a == b; });             \
    compare<T>(t, {"setp.ne." name}, [](T a, T b) { return a < b || a > b; });     \
    compare<T>(t, {"setp.lt." name}, [](T a, T b) { return a < b; });              \
    compare<T>(t, {"setp.le." name}, [](T a, T b) { return a <= b; });             \
    compare<T>(t, {"setp.gt." name}, [](T a, T b) { return a > b; });              \
    compare<T>(t, {"setp.ge." name}, [](T a, T b) { return a >= b; });             \
    compare<T>(t, {"setp.equ." name}, [](T a, T b) { return !(a < b || a > b); }); \
    compare<T>(t, {"setp.neu." name}, [](T a, T b) { return a != b; });            \
    compare<T>(t, {"setp.ltu." name}, [](T a, T b) { return !(a >= b); });         \
    compare<T>(t, {"setp.leu." name}, [](T a, T b) { return !(a > b); });          \
    compare<T>(t, {"setp.gtu." name}, [](T a, T b) { return !(a <= b); });         \
    compare<T>(t, {"setp.geu." name}, [](T a, T b) { return !(a < b); });          \
    compare<T>(t, {"setp.num." name}, [](T a, T b) { return a == a && b == b; });  \
    compare<T>(t, {"setp.nan." name}, [](T a, T b) { return a != a || b != b; });

// `set`: the lowering runs setp into a scratch predicate and then one of these.
template <class T>
void run_from_pred(Warp& w, const Inst& i) {
    T* d = w.reg<T>(i.d);
    const std::uint32_t p = w.pred(i.a);
    const T yes = static_cast<T>(i.imm);
    each_lane(w.exec, [=](std::uint32_t l) { d[l] = (p >> l & 1) != 0 ? yes : T{0}; });
}

// Packed 16-bit pairs: imm in each half whose predicate is true (a for the low half, b for the high one), else 0.
void run_pair_from_preds(Warp& w, const Inst& i) {
    auto* d = w.reg<std::uint32_t>(i.d);
    const std::uint32_t low = w.pred(i.a), high = w.pred(i.b);
    const auto yes = static_cast<std::uint32_t>(i.imm & 0xFFFF);
    each_lane(w.exec, [=](std::uint32_t l) {
        d[l] = ((low >> l & 1) != 0 ? yes : 0) | ((high >> l & 1) != 0 ? yes << 16 : 0);
    });
}

template <class T, class F>
void run_test(Warp& w, const Inst& i) {
    const T* a = w.reg<T>(i.a);
    set_pred(w, i.d, lane_mask([=](std::uint32_t l) { return F{}(a[l]); }));
}

template <class T, class F>
void test(OpTable& t, std::string_view name, F) {
    t.add({name}, {run_test<T, F>, Slot::pred, {slot_of<T>()}});
}

#define FLOAT_TESTS(T, name)                                                          \
    test<T>(t, "testp.finite." name, [](T a) { return std::isfinite(a); });           \
    test<T>(t, "testp.infinite." name, [](T a) { return std::isinf(a); });            \
    test<T>(t, "testp.number." name, [](T a) { return !std::isnan(a); });             \
    test<T>(t, "testp.notanumber." name, [](T a) { return std::isnan(a); });          \
    /* PTX counts the zeros among the normal numbers. */                              \
    test<T>(t, "testp.normal." name, [](T a) { return std::isnormal(a) || a == 0; }); \
    test<T>(t, "testp.subnormal." name, [](T a) { return std::fpclassify(a) == FP_SUBNORMAL; });

}  // namespace

void register_compare(OpTable& t) {
    INTEGER_COMPARES(std::int16_t, "s16")
    INTEGER_COMPARES(std::uint16_t, "u16")
    INTEGER_COMPARES(std::int32_t, "s32")
    INTEGER_COMPARES(std::uint32_t, "u32")
    INTEGER_COMPARES(std::int64_t, "s64")
    INTEGER_COMPARES(std::uint64_t, "u64")
    EQUALITY(std::uint16_t, "s16", "u16", "b16")
    EQUALITY(std::uint32_t, "s32", "u32", "b32")
    EQUALITY(std::uint64_t, "s64", "u64", "b64")
    FLOAT_COMPARES(float, "f32")
    FLOAT_COMPARES(double, "f64")
    FLOAT_TESTS(float, "f32")
    FLOAT_TESTS(double, "f64")
    t.add({"frompred.pair"}, {run_pair_from_preds, Slot::bits32, {Slot::pred, Slot::pred}});
    t.add({"frompred.16"}, {run_from_pred<std::uint16_t>, Slot::bits16, {Slot::pred}});
    t.add({"frompred.32"}, {run_from_pred<std::uint32_t>, Slot::bits32, {Slot::pred}});
    t.add({"frompred.64"}, {run_from_pred<std::uint64_t>, Slot::bits64, {Slot::pred}});
}

}  // namespace gpupool::softgpu::GPUPOOL_SOFTGPU_ISA
