// atom and red on shared and global memory. The lowering looks up "atom.<op>.<type>"; `red` is the same without a
// destination. cp.reduce.async.bulk applies "bulk.<op>.<type>" to each element.
#include <algorithm>

#include "server/softgpu/exec/float_ops.h"
#include "server/softgpu/exec/half.h"
#include "server/softgpu/exec/mbarrier.h"

namespace gpupool::softgpu::GPUPOOL_SOFTGPU_ISA {
namespace {

template <class T>
using Bits = std::conditional_t<sizeof(T) == 2, u16, std::conditional_t<sizeof(T) == 4, u32, u64>>;

// *p = F(*p, b); returns the old value.
template <class T, class F>
Bits<T> exchange(std::uint64_t address, T b) {
    auto* p = reinterpret_cast<Bits<T>*>(address);
    Bits<T> old = __atomic_load_n(p, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(p, &old, std::bit_cast<Bits<T>>(F{}(std::bit_cast<T>(old), b)), true,
                                        __ATOMIC_SEQ_CST, __ATOMIC_RELAXED)) {
    }
    return old;
}

// Calls `old = f(address, lane)` for each lane, in order, and stores `old` if the instruction has a destination.
template <class T, class F>
void each_atomic(Warp& w, const Inst& i, F f) {
    LanePointers pointers;
    if (!resolve(w, i, sizeof(T), pointers, Access::write)) {
        return;
    }
    T* d = i.d == kNoSlot ? nullptr : w.reg<T>(i.d);
    for (u32 rest = w.exec; rest != 0; rest &= rest - 1) {
        const u32 lane = static_cast<u32>(std::countr_zero(rest));
        const T old = f(pointers[lane], lane);
        if (d != nullptr) {
            d[lane] = old;
        }
    }
}

template <class T, class F>
void run_atomic(Warp& w, const Inst& i) {
    const T* b = w.reg<T>(i.b);
    each_atomic<T>(w, i, [=](u64 address, u32 lane) { return std::bit_cast<T>(exchange<T, F>(address, b[lane])); });
}

template <class T>
void run_add(Warp& w, const Inst& i) {
    const T* b = w.reg<T>(i.b);
    each_atomic<T>(w, i, [=](u64 address, u32 lane) {
        return __atomic_fetch_add(reinterpret_cast<T*>(address), b[lane], __ATOMIC_SEQ_CST);
    });
}

template <class T>
void run_cas(Warp& w, const Inst& i) {
    const T* b = w.reg<T>(i.b);
    const T* c = w.reg<T>(i.c);
    each_atomic<T>(w, i, [=](u64 address, u32 lane) {
        T expected = b[lane];
        __atomic_compare_exchange_n(reinterpret_cast<T*>(address), &expected, c[lane], false, __ATOMIC_SEQ_CST,
                                    __ATOMIC_SEQ_CST);
        return expected;
    });
}

__extension__ typedef unsigned __int128 u128;

// Every x86-64 CPU except the very first ones supports it.
[[gnu::target("cx16")]] u128 compare_and_swap(u64 address, u128 expected, u128 desired) {
    return __sync_val_compare_and_swap(reinterpret_cast<u128*>(address), expected, desired);
}

// exch and cas of 128 bits: each operand is two adjacent slots of 64 bits.
template <bool Compare>
void run_wide(Warp& w, const Inst& i) {
    LanePointers pointers;
    if (!resolve(w, i, sizeof(u128), pointers, Access::write)) {
        return;
    }
    const auto value = [&](u32 slot, u32 lane) {
        const u64* halves = w.reg<u64>(slot);
        return u128{halves[kLaneCount + lane]} << 64 | halves[lane];
    };
    for (u32 rest = w.exec; rest != 0; rest &= rest - 1) {
        const u32 lane = static_cast<u32>(std::countr_zero(rest));
        u128 old = 0;
        if (Compare) {
            old = compare_and_swap(pointers[lane], value(i.b, lane), value(i.c, lane));
        } else {
            for (u128 seen = 0;; seen = old) {
                old = compare_and_swap(pointers[lane], seen, value(i.b, lane));
                if (old == seen) {
                    break;
                }
            }
        }
        if (i.d == kNoSlot) {
            continue;
        }
        w.reg<u64>(i.d)[lane] = static_cast<u64>(old);
        w.reg<u64>(i.d)[kLaneCount + lane] = static_cast<u64>(old >> 64);
    }
}

template <class T, class F>
void run_bulk(Warp& w, const Inst& i) {
    each_bulk(w, i, [](u64 to, u64 from, u32 bytes) {
        for (u64 k = 0; k < bytes; k += sizeof(T)) {
            T value;
            std::memcpy(&value, reinterpret_cast<const void*>(from + k), sizeof value);
            exchange<T, F>(to + k, value);
        }
    });
}

template <class T, class F>
void bulk(OpTable& t, std::initializer_list<std::string_view> names, F) {
    t.add(names, {run_bulk<T, F>, Slot::none, {}, Slot::none, Flow::checked});
}
template <class T, class F>
void atomic(OpTable& t, std::initializer_list<std::string_view> names, F) {
    t.add(names, {run_atomic<T, F>, slot_of<T>(), {slot_of<T>()}, Slot::none, Flow::checked});
}
// Adds the atom instruction and its bulk form.
template <class T, class F>
void reduction(OpTable& t, std::string_view atom_name, std::string_view bulk_name, F f) {
    atomic<T>(t, {atom_name}, f);
    bulk<T>(t, {bulk_name}, f);
}

template <class H, H Encode(double, Round)>
u16 add_half(u16 a, u16 b) {
    return Encode(to_double(H{a}) + to_double(H{b}), Round::nearest).bits;
}

template <class T, bool Max>
u16 chosen_half(u16 a, u16 b) {
    const double x = to_double(T{a}), y = to_double(T{b});
    if (x != x || y != y) {
        return x != x ? (y != y ? u16{0x7FFF} : b) : a;
    }
    return choose<Max, false>(x, y) == x && (x != y || std::signbit(choose<Max, false>(x, y)) == std::signbit(x)) ? a
                                                                                                                  : b;
}

template <class H, H Encode(double, Round)>
u32 add_pair(u32 a, u32 b) {
    return u32{add_half<H, Encode>(static_cast<u16>(a), static_cast<u16>(b))} |
           u32{add_half<H, Encode>(static_cast<u16>(a >> 16), static_cast<u16>(b >> 16))} << 16;
}

}  // namespace

void register_atomic(OpTable& t) {
    t.add({"atom.add.u32", "atom.add.s32"}, {run_add<u32>, Slot::bits32, {Slot::bits32}, Slot::none, Flow::checked});
    t.add({"atom.add.u64", "atom.add.s64"}, {run_add<u64>, Slot::bits64, {Slot::bits64}, Slot::none, Flow::checked});
    t.add({"atom.cas.b16"}, {run_cas<u16>, Slot::bits16, {Slot::bits16, Slot::bits16}, Slot::none, Flow::checked});
    t.add({"atom.cas.b32", "atom.cas.u32", "atom.cas.s32"},
          {run_cas<u32>, Slot::bits32, {Slot::bits32, Slot::bits32}, Slot::none, Flow::checked});
    t.add({"atom.cas.b64", "atom.cas.u64", "atom.cas.s64"},
          {run_cas<u64>, Slot::bits64, {Slot::bits64, Slot::bits64}, Slot::none, Flow::checked});
    t.add({"atom.cas.b128"}, {run_wide<true>, Slot::bits64, {Slot::bits64, Slot::bits64}, Slot::none, Flow::checked});
    t.add({"atom.exch.b128"}, {run_wide<false>, Slot::bits64, {Slot::bits64}, Slot::none, Flow::checked});
    atomic<float>(t, {"atom.add.f32", "atom.add.ftz.f32"}, [](float a, float b) { return canonical(a + b); });
    bulk<float>(t, {"bulk.add.f32"}, [](float a, float b) { return canonical(a + b); });
    bulk<u32>(t, {"bulk.add.u32", "bulk.add.s32"}, [](u32 a, u32 b) { return a + b; });
    bulk<u64>(t, {"bulk.add.u64", "bulk.add.s64"}, [](u64 a, u64 b) { return a + b; });
    bulk<u16>(t, {"bulk.min.f16"}, [](u16 a, u16 b) { return chosen_half<Half, false>(a, b); });
    bulk<u16>(t, {"bulk.max.f16"}, [](u16 a, u16 b) { return chosen_half<Half, true>(a, b); });
    bulk<u16>(t, {"bulk.min.bf16"}, [](u16 a, u16 b) { return chosen_half<Bfloat, false>(a, b); });
    bulk<u16>(t, {"bulk.max.bf16"}, [](u16 a, u16 b) { return chosen_half<Bfloat, true>(a, b); });
    reduction<double>(t, "atom.add.f64", "bulk.add.f64", [](double a, double b) { return a + b; });
    reduction<u16>(t, "atom.add.noftz.f16", "bulk.add.noftz.f16",
                   [](u16 a, u16 b) { return add_half<Half, to_half>(a, b); });
    reduction<u16>(t, "atom.add.noftz.bf16", "bulk.add.noftz.bf16",
                   [](u16 a, u16 b) { return add_half<Bfloat, to_bfloat>(a, b); });
    atomic<u32>(t, {"atom.add.noftz.f16x2"}, [](u32 a, u32 b) { return add_pair<Half, to_half>(a, b); });
    atomic<u32>(t, {"atom.add.noftz.bf16x2"}, [](u32 a, u32 b) { return add_pair<Bfloat, to_bfloat>(a, b); });
#define HALF_ORDER(name, T, Max, n)                                                                        \
    atomic<u16>(t, {name n}, [](u16 a, u16 b) { return chosen_half<T, Max>(a, b); });                      \
    atomic<u32>(t, {name n "x2"}, [](u32 a, u32 b) {                                                       \
        const auto half = [&](int k) {                                                                     \
            return u32{chosen_half<T, Max>(static_cast<u16>(a >> 16 * k), static_cast<u16>(b >> 16 * k))}; \
        };                                                                                                 \
        return half(0) | half(1) << 16;                                                                    \
    });
    HALF_ORDER("atom.min.noftz.", Half, false, "f16")
    HALF_ORDER("atom.max.noftz.", Half, true, "f16")
    HALF_ORDER("atom.min.noftz.", Bfloat, false, "bf16")
    HALF_ORDER("atom.max.noftz.", Bfloat, true, "bf16")
#undef HALF_ORDER
    atomic<u32>(t, {"atom.exch.b32", "atom.exch.u32", "atom.exch.s32", "atom.exch.f32"}, [](u32, u32 b) { return b; });
    atomic<u64>(t, {"atom.exch.b64", "atom.exch.u64", "atom.exch.s64", "atom.exch.f64"}, [](u64, u64 b) { return b; });
    reduction<u32>(t, "atom.and.b32", "bulk.and.b32", [](u32 a, u32 b) { return a & b; });
    reduction<u32>(t, "atom.or.b32", "bulk.or.b32", [](u32 a, u32 b) { return a | b; });
    reduction<u32>(t, "atom.xor.b32", "bulk.xor.b32", [](u32 a, u32 b) { return a ^ b; });
    reduction<u64>(t, "atom.and.b64", "bulk.and.b64", [](u64 a, u64 b) { return a & b; });
    reduction<u64>(t, "atom.or.b64", "bulk.or.b64", [](u64 a, u64 b) { return a | b; });
    reduction<u64>(t, "atom.xor.b64", "bulk.xor.b64", [](u64 a, u64 b) { return a ^ b; });
    reduction<u32>(t, "atom.inc.u32", "bulk.inc.u32", [](u32 a, u32 b) { return a >= b ? 0U : a + 1; });
    reduction<u32>(t, "atom.dec.u32", "bulk.dec.u32", [](u32 a, u32 b) { return a == 0 || a > b ? b : a - 1; });
    reduction<u32>(t, "atom.min.u32", "bulk.min.u32", [](u32 a, u32 b) { return std::min(a, b); });
    reduction<u32>(t, "atom.max.u32", "bulk.max.u32", [](u32 a, u32 b) { return std::max(a, b); });
    reduction<s32>(t, "atom.min.s32", "bulk.min.s32", [](s32 a, s32 b) { return std::min(a, b); });
    reduction<s32>(t, "atom.max.s32", "bulk.max.s32", [](s32 a, s32 b) { return std::max(a, b); });
    reduction<u64>(t, "atom.min.u64", "bulk.min.u64", [](u64 a, u64 b) { return std::min(a, b); });
    reduction<u64>(t, "atom.max.u64", "bulk.max.u64", [](u64 a, u64 b) { return std::max(a, b); });
    reduction<s64>(t, "atom.min.s64", "bulk.min.s64", [](s64 a, s64 b) { return std::min(a, b); });
    reduction<s64>(t, "atom.max.s64", "bulk.max.s64", [](s64 a, s64 b) { return std::max(a, b); });
}

}  // namespace gpupool::softgpu::GPUPOOL_SOFTGPU_ISA
