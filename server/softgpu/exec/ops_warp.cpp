// Warp-wide instructions. The interpreter has gathered the lanes of the member mask before they run.
#include <algorithm>

#include "server/softgpu/exec/lanes.h"

namespace gpupool::softgpu::GPUPOOL_SOFTGPU_ISA {
namespace {

// shfl: d, a value, b lane argument, c clamp and segment mask; extra: the predicate, if any.
enum class Shuffle : std::uint8_t { up, down, butterfly, index };

template <Shuffle Mode>
void run_shuffle(Warp& w, const Inst& i) {
    u32 values[kLaneCount];
    std::memcpy(values, w.reg<u32>(i.a), sizeof values);  // d may be a
    u32* d = w.reg<u32>(i.d);
    const u32* b = w.reg<u32>(i.b);
    const u32* c = w.reg<u32>(i.c);
    u32 in_range = 0;
    u32 result[kLaneCount];
    for (u32 rest = w.exec; rest != 0; rest &= rest - 1) {
        const u32 lane = static_cast<u32>(std::countr_zero(rest));
        const u32 amount = b[lane] & 31;
        const u32 segment = c[lane] >> 8 & 31;
        const u32 last = (lane & segment) | (c[lane] & 31 & ~segment);
        u32 source = 0;
        bool inside = false;
        switch (Mode) {
            case Shuffle::up:
                source = lane - amount;
                inside = static_cast<std::int32_t>(source) >= static_cast<std::int32_t>(last);
                break;
            case Shuffle::down:
                source = lane + amount;
                inside = source <= last;
                break;
            case Shuffle::butterfly:
                source = lane ^ amount;
                inside = source <= last;
                break;
            case Shuffle::index:
                source = (lane & segment) | (amount & ~segment);
                inside = source <= last;
                break;
        }
        if (inside) {
            in_range |= 1U << lane;
        }
        result[lane] = values[inside ? source : lane];
    }
    for (u32 rest = w.exec; rest != 0; rest &= rest - 1) {
        const u32 lane = static_cast<u32>(std::countr_zero(rest));
        d[lane] = result[lane];
    }
    set_pred(w, i.extra, in_range);
}

void splat(Warp& w, u32 slot, u32 value) {
    if (slot == kNoSlot) {
        return;
    }
    u32* d = w.reg<u32>(slot);
    each_lane(w.exec, [=](u32 l) { d[l] = value; });
}

void run_ballot(Warp& w, const Inst& i) {
    splat(w, i.d, w.pred(i.a) & w.exec);
}
void run_vote_all(Warp& w, const Inst& i) {
    set_pred(w, i.d, (w.pred(i.a) & w.exec) == w.exec ? kAllLanes : 0);
}
void run_vote_any(Warp& w, const Inst& i) {
    set_pred(w, i.d, (w.pred(i.a) & w.exec) != 0 ? kAllLanes : 0);
}
void run_vote_uniform(Warp& w, const Inst& i) {
    const u32 yes = w.pred(i.a) & w.exec;
    set_pred(w, i.d, yes == 0 || yes == w.exec ? kAllLanes : 0);
}

void run_active(Warp& w, const Inst& i) {
    splat(w, i.d, w.exec);
}

template <class T>
void run_match_any(Warp& w, const Inst& i) {
    T values[kLaneCount];
    std::memcpy(values, w.reg<T>(i.a), sizeof values);
    u32* d = w.reg<u32>(i.d);
    for (u32 rest = w.exec; rest != 0;) {
        const T value = values[std::countr_zero(rest)];
        u32 same = 0;
        for (u32 others = rest; others != 0; others &= others - 1) {
            const u32 lane = static_cast<u32>(std::countr_zero(others));
            if (values[lane] == value) {
                same |= 1U << lane;
            }
        }
        for (u32 members = same; members != 0; members &= members - 1) {
            d[std::countr_zero(members)] = same;
        }
        rest &= ~same;
    }
}

template <class T>
void run_match_all(Warp& w, const Inst& i) {
    const T* a = w.reg<T>(i.a);
    bool same = true;
    const T first = a[std::countr_zero(w.exec)];
    for (u32 rest = w.exec; rest != 0; rest &= rest - 1) {
        same &= a[std::countr_zero(rest)] == first;
    }
    splat(w, i.d, same ? w.exec : 0);
    set_pred(w, i.extra, same ? kAllLanes : 0);
}

template <class T, class F>
void run_reduce(Warp& w, const Inst& i) {
    const T* a = w.reg<T>(i.a);
    u32 rest = w.exec;
    T total = a[std::countr_zero(rest)];
    for (rest &= rest - 1; rest != 0; rest &= rest - 1) {
        total = F{}(total, a[std::countr_zero(rest)]);
    }
    splat(w, i.d, static_cast<u32>(total));
}

template <class T, class F>
Op reduce(F) {
    return {run_reduce<T, F>, Slot::bits32, {Slot::bits32}, Slot::none, Flow::warp_sync};
}

void run_elect(Warp& w, const Inst& i) {
    const u32 leader = static_cast<u32>(std::countr_zero(w.exec));
    splat(w, i.d, leader);
    set_pred(w, i.extra, 1U << leader);
}

void run_nothing(Warp&, const Inst&) {}

}  // namespace

void register_warp(OpTable& t) {
    const auto shuffle = [](OpFn fn) {
        return Op{fn, Slot::bits32, {Slot::bits32, Slot::bits32, Slot::bits32}, Slot::pred, Flow::warp_sync};
    };
    t.add({"shfl.sync.up.b32"}, shuffle(run_shuffle<Shuffle::up>));
    t.add({"shfl.sync.down.b32"}, shuffle(run_shuffle<Shuffle::down>));
    t.add({"shfl.sync.bfly.b32"}, shuffle(run_shuffle<Shuffle::butterfly>));
    t.add({"shfl.sync.idx.b32"}, shuffle(run_shuffle<Shuffle::index>));
    t.add({"vote.sync.ballot.b32"}, {run_ballot, Slot::bits32, {Slot::pred}, Slot::none, Flow::warp_sync});
    t.add({"vote.sync.all.pred"}, {run_vote_all, Slot::pred, {Slot::pred}, Slot::none, Flow::warp_sync});
    t.add({"vote.sync.any.pred"}, {run_vote_any, Slot::pred, {Slot::pred}, Slot::none, Flow::warp_sync});
    t.add({"vote.sync.uni.pred"}, {run_vote_uniform, Slot::pred, {Slot::pred}, Slot::none, Flow::warp_sync});
    t.add({"match.any.sync.b32"}, {run_match_any<u32>, Slot::bits32, {Slot::bits32}, Slot::none, Flow::warp_sync});
    t.add({"match.any.sync.b64"}, {run_match_any<u64>, Slot::bits32, {Slot::bits64}, Slot::none, Flow::warp_sync});
    t.add({"match.all.sync.b32"}, {run_match_all<u32>, Slot::bits32, {Slot::bits32}, Slot::pred, Flow::warp_sync});
    t.add({"match.all.sync.b64"}, {run_match_all<u64>, Slot::bits32, {Slot::bits64}, Slot::pred, Flow::warp_sync});
    t.add({"redux.sync.add.u32", "redux.sync.add.s32"}, reduce<u32>([](u32 a, u32 b) { return a + b; }));
    t.add({"redux.sync.and.b32"}, reduce<u32>([](u32 a, u32 b) { return a & b; }));
    t.add({"redux.sync.or.b32"}, reduce<u32>([](u32 a, u32 b) { return a | b; }));
    t.add({"redux.sync.xor.b32"}, reduce<u32>([](u32 a, u32 b) { return a ^ b; }));
    t.add({"redux.sync.min.u32"}, reduce<u32>([](u32 a, u32 b) { return std::min(a, b); }));
    t.add({"redux.sync.max.u32"}, reduce<u32>([](u32 a, u32 b) { return std::max(a, b); }));
    t.add({"redux.sync.min.s32"}, reduce<std::int32_t>([](std::int32_t a, std::int32_t b) { return std::min(a, b); }));
    t.add({"redux.sync.max.s32"}, reduce<std::int32_t>([](std::int32_t a, std::int32_t b) { return std::max(a, b); }));
    t.add({"elect.sync"}, {run_elect, Slot::bits32, {}, Slot::pred, Flow::warp_sync});
    t.add({"bar.warp.sync"}, {run_nothing, Slot::none, {}, Slot::none, Flow::warp_sync});
    t.add({"activemask.b32"}, {run_active, Slot::bits32, {}});
}

}  // namespace gpupool::softgpu::GPUPOOL_SOFTGPU_ISA
