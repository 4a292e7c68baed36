// Asynchronous copies and the mbarriers that count them. A copy is complete when it is issued, which PTX allows, so
// groups of copies need no bookkeeping.
#include <algorithm>

#include "server/softgpu/exec/async_form.h"
#include "server/softgpu/exec/mbarrier.h"

namespace gpupool::softgpu::GPUPOOL_SOFTGPU_ISA {
namespace {

// Runs one barrier operation per lane, in order. `f(barrier, lane)` returns an error message or null.
template <class F>
void each_barrier(Warp& w, const Inst& i, F f) {
    LanePointers pointers;
    if (!resolve(w, i, 8, pointers, Access::write)) {
        return;
    }
    for (u32 rest = w.exec; rest != 0; rest &= rest - 1) {
        const u32 lane = static_cast<u32>(std::countr_zero(rest));
        auto* at = reinterpret_cast<u64*>(pointers[lane]);
        Mbarrier barrier(__atomic_load_n(at, __ATOMIC_ACQUIRE));
        if (const char* wrong = f(barrier, lane)) {
            return w.raise(FaultKind::illegal_instruction, i, pointers[lane], wrong);
        }
        __atomic_store_n(at, barrier.bits(), __ATOMIC_RELEASE);
    }
}

u32 value_of(const Warp& w, u32 slot, u32 lane, u32 otherwise) {
    return slot == kNoSlot ? otherwise : w.reg<u32>(slot)[lane];
}

void run_init(Warp& w, const Inst& i) {
    each_barrier(w, i, [&](Mbarrier& barrier, u32 lane) -> const char* {
        const u32 count = w.reg<u32>(i.b)[lane];
        if (count == 0 || count > kMaxArrivals) {
            return "an mbarrier counts 1 to 1048575 arrivals";
        }
        barrier = Mbarrier(u64{count} | u64{count} << 20);
        return nullptr;
    });
}

void run_invalidate(Warp& w, const Inst& i) {
    each_barrier(w, i, [](Mbarrier& barrier, u32) -> const char* {
        barrier = Mbarrier(0);
        return nullptr;
    });
}

// b: arrivals, c: bytes to expect first; extra: see async_form.h.
void run_arrive(Warp& w, const Inst& i) {
    u64* d = i.d == kNoSlot ? nullptr : w.reg<u64>(i.d);
    each_barrier(w, i, [&](Mbarrier& barrier, u32 lane) -> const char* {
        const u32 count = value_of(w, i.b, lane, 1);
        if (d != nullptr) {
            d[lane] = barrier.bits();
        }
        barrier.bytes += value_of(w, i.c, lane, 0);
        if (barrier.bytes > kMaxBytes) {
            return "an mbarrier counts at most 1048575 bytes";
        }
        if (count > barrier.pending) {
            return "more arrivals at an mbarrier than it expects";
        }
        barrier.pending -= count;
        if ((i.extra & async_form::kDrops) != 0) {
            barrier.expected -= std::min(count, barrier.expected);
        }
        barrier.complete_if_done();
        return nullptr;
    });
}

// expect_tx and complete_tx: b bytes.
void run_bytes(Warp& w, const Inst& i) {
    const bool completes = (i.extra & async_form::kCompletes) != 0;
    each_barrier(w, i, [&](Mbarrier& barrier, u32 lane) -> const char* {
        const s64 bytes = w.reg<u32>(i.b)[lane];
        barrier.bytes += completes ? -bytes : bytes;
        if (barrier.bytes > kMaxBytes || barrier.bytes < -kMaxBytes) {
            return "an mbarrier counts at most 1048575 bytes";
        }
        if (completes) {
            barrier.complete_if_done();
        }
        return nullptr;
    });
}

// cp.async.mbarrier.arrive: this thread's copies are complete. Without .noinc, the arrival was not counted before.
void run_copy_arrive(Warp& w, const Inst& i) {
    each_barrier(w, i, [&](Mbarrier& barrier, u32) -> const char* {
        if ((i.extra & async_form::kCounted) == 0) {
            return nullptr;
        }
        if (barrier.pending == 0) {
            return "more arrivals at an mbarrier than it expects";
        }
        --barrier.pending;
        barrier.complete_if_done();
        return nullptr;
    });
}

// test_wait and try_wait: b is a state, or the parity of a phase.
void run_test(Warp& w, const Inst& i) {
    LanePointers pointers;
    if (!resolve(w, i, 8, pointers, Access::write)) {
        return;
    }
    const bool parity = (i.extra & async_form::kByParity) != 0;
    u32 result = 0;
    for (u32 rest = w.exec; rest != 0; rest &= rest - 1) {
        const u32 lane = static_cast<u32>(std::countr_zero(rest));
        const Mbarrier barrier(__atomic_load_n(reinterpret_cast<const u64*>(pointers[lane]), __ATOMIC_ACQUIRE));
        const bool asked = parity ? (w.reg<u32>(i.b)[lane] & 1) != 0 : w.reg<u64>(i.b)[lane] >> 63 != 0;
        if (barrier.parity != asked) {
            result |= 1U << lane;
        }
    }
    set_pred(w, i.d, result);
}

void run_pending(Warp& w, const Inst& i) {
    const u64* a = w.reg<u64>(i.a);
    u32* d = w.reg<u32>(i.d);
    each_lane(w.exec, [=](u32 l) { d[l] = static_cast<u32>(a[l] & kMaxArrivals); });
}

// The instruction with another address operand, a whole address in a slot.
Inst at_slot(const Inst& i, u32 slot, u8 mode) {
    Inst other = i;
    other.a = slot;
    other.imm = 0;
    other.mode = mode;
    return other;
}

// cp.async: copies imm bytes from b to a, which is in shared memory. c: number of bytes that are read, the rest is
// zero; e: predicate under which nothing is read.
void run_copy(Warp& w, const Inst& i) {
    const auto bytes = static_cast<u32>(i.imm);
    LanePointers to, from;
    Inst target = i;
    target.imm = 0;
    if (!resolve(w, target, bytes, to, Access::write)) {
        return;
    }
    const u32 ignored = i.e == kNoSlot ? 0 : w.pred(i.e);
    u32 sizes[kLaneCount] = {};
    const u32 exec = w.exec;
    for (u32 rest = exec; rest != 0; rest &= rest - 1) {
        const u32 lane = static_cast<u32>(std::countr_zero(rest));
        const bool skip = (ignored >> lane & 1) != 0;
        sizes[lane] = skip ? 0 : std::min(bytes, value_of(w, i.c, lane, bytes));
        if (sizes[lane] == 0) {
            w.exec &= ~(1U << lane);
        }
    }
    const bool found =
        w.exec == 0 || resolve(w, at_slot(i, i.b, static_cast<u8>(MemorySpace::global)), bytes, from, Access::read);
    w.exec = exec;
    if (!found) {
        return;
    }
    for (u32 rest = exec; rest != 0; rest &= rest - 1) {
        const u32 lane = static_cast<u32>(std::countr_zero(rest));
        auto* at = reinterpret_cast<u8*>(to[lane]);
        if (sizes[lane] != 0) {
            std::memcpy(at, reinterpret_cast<const u8*>(from[lane]), sizes[lane]);
        }
        std::memset(at + sizes[lane], 0, bytes - sizes[lane]);
    }
}

void run_bulk(Warp& w, const Inst& i) {
    each_bulk(w, i, [](u64 to, u64 from, u32 bytes) {
        std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
    });
}

// st.async: stores the vector at b (slots in aux; extra: bytes per element in the low 8 bits, number of elements above)
// to a, counted at the mbarrier e.
void run_store_async(Warp& w, const Inst& i) {
    const u32 element = i.extra & 0xFF, count = i.extra >> 8;
    const u32* slots = w.current.frame->function->aux.data() + i.b;
    for (u32 rest = w.exec; rest != 0; rest &= rest - 1) {
        const u32 lane = static_cast<u32>(std::countr_zero(rest));
        u64 to = 0, barrier = 0;
        if (!resolve_span(w, i, MemorySpace::shared, w.reg<u64>(i.a)[lane], element * count, to, Access::write) ||
            !resolve_span(w, i, MemorySpace::shared, w.reg<u64>(i.e)[lane], 8, barrier, Access::write)) {
            return;
        }
        if (to % (element * count) != 0 || barrier % 8 != 0) {
            return w.raise(FaultKind::misaligned_address, i, to, "the address is not a multiple of the access");
        }
        for (u32 k = 0; k < count; ++k) {
            std::memcpy(reinterpret_cast<u8*>(to) + std::size_t{k} * element,
                        w.reg<u8>(slots[k]) + std::size_t{lane} * element, element);
        }
        complete_bytes(barrier, element * count);
    }
}

}  // namespace

void register_async(OpTable& t) {
    const auto add = [&](std::string_view name, OpFn fn) {
        t.add({name}, {fn, Slot::none, {}, Slot::none, Flow::checked});
    };
    add("mbarrier.init", run_init);
    add("mbarrier.inval", run_invalidate);
    add("mbarrier.arrive", run_arrive);
    add("mbarrier.bytes", run_bytes);
    add("mbarrier.copy_arrive", run_copy_arrive);
    add("mbarrier.test", run_test);
    add("async.copy", run_copy);
    add("async.bulk", run_bulk);
    add("async.store", run_store_async);
    t.add({"mbarrier.pending_count.b64"}, {run_pending, Slot::bits32, {Slot::bits64}});
}

}  // namespace gpupool::softgpu::GPUPOOL_SOFTGPU_ISA
