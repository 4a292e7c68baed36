// Special registers: "sreg.<name>" reads one into a slot.
#include <ctime>

#include "server/softgpu/exec/lanes.h"

namespace gpupool::softgpu::GPUPOOL_SOFTGPU_ISA {
namespace {

template <class T, class F>
void run_special(Warp& w, const Inst& i) {
    T* d = w.reg<T>(i.d);
    const F read{};
    each_lane(w.exec, [&](u32 l) { d[l] = static_cast<T>(read(w, l)); });
}

template <class T, class F>
void special(OpTable& t, std::string_view name, F) {
    t.add({name}, {run_special<T, F>, slot_of<T>(), {}});
}

// The time is read once per warp, since its lanes execute the instruction together.
template <class T, class F>
void run_clock(Warp& w, const Inst& i) {
    const T now = static_cast<T>(F{}());
    T* d = w.reg<T>(i.d);
    each_lane(w.exec, [=](u32 l) { d[l] = now; });
}

template <class T, class F>
void clock_register(OpTable& t, std::string_view name, F) {
    t.add({name}, {run_clock<T, F>, slot_of<T>(), {}});
}

u64 nanoseconds(clockid_t clock) {
    timespec now{};
    clock_gettime(clock, &now);
    return static_cast<u64>(now.tv_sec) * 1'000'000'000U + static_cast<u64>(now.tv_nsec);
}

// The clock rate attribute is 1 GHz, so cycles are nanoseconds.
u64 cycles() {
    return nanoseconds(CLOCK_MONOTONIC);
}
u64 global_timer() {
    return nanoseconds(CLOCK_REALTIME);
}

// Addresses that depend on the running frame or launch; imm is the offset.
void run_local_address(Warp& w, const Inst& i) {
    u64* d = w.reg<u64>(i.d);
    const u64 value = w.current.frame->local_base_bytes + i.imm;
    each_lane(w.exec, [=](u32 l) { d[l] = value; });
}

void run_dynamic_shared_address(Warp& w, const Inst& i) {
    u64* d = w.reg<u64>(i.d);
    const u64 value = dynamic_shared_offset_bytes(*w.launch->entry) + i.imm;
    each_lane(w.exec, [=](u32 l) { d[l] = value; });
}

// cvta.param: converts an offset in the launch's parameter buffer to an address.
void run_param_address(Warp& w, const Inst& i) {
    u64* d = w.reg<u64>(i.d);
    const u64* a = w.reg<u64>(i.a);
    const u64 base = reinterpret_cast<u64>(w.launch->params);
    each_lane(w.exec, [=](u32 l) { d[l] = a[l] + base; });
}

// isspacep: imm 0 global, 1 shared, 2 local, 3 param.
void run_in_space(Warp& w, const Inst& i) {
    const u64* a = w.reg<u64>(i.a);
    const Windows& window = windows();
    const u64 params = reinterpret_cast<u64>(w.launch->params);
    const u64 param_bytes = w.launch->entry->param_bytes;
    u32 result = 0;
    for (u32 l = 0; l < kLaneCount; ++l) {
        const bool shared = a[l] - window.shared_base < Windows::kSizeBytes;
        const bool local = a[l] - window.local_base < Windows::kSizeBytes;
        const bool param = a[l] - params < param_bytes;
        const bool answers[] = {!shared && !local && !param, shared, local, param};
        if (answers[i.imm & 3]) {
            result |= 1U << l;
        }
    }
    set_pred(w, i.d, result);
}

// mapa: the same offset in another block's shared memory. imm is the window of generic addresses, or 0.
void run_map_shared(Warp& w, const Inst& i) {
    const u64* a = w.reg<u64>(i.a);
    const u32* rank = w.reg<u32>(i.b);
    u64* d = w.reg<u64>(i.d);
    each_lane(w.exec, [=](u32 l) {
        const u64 offset = (a[l] - i.imm) & ((1U << kPeerSharedShift) - 1);
        d[l] = i.imm + ((u64{rank[l]} + 1) << kPeerSharedShift | offset);
    });
}

void run_shared_rank(Warp& w, const Inst& i) {
    const u64* a = w.reg<u64>(i.a);
    u32* d = w.reg<u32>(i.d);
    each_lane(w.exec, [&](u32 l) {
        const u64 number = (a[l] - i.imm) >> kPeerSharedShift;
        d[l] = number == 0 ? w.cluster_rank : static_cast<u32>(number - 1);
    });
}

void run_explicit_cluster(Warp& w, const Inst& i) {
    set_pred(w, i.d, w.cluster_blocks > 1 ? kAllLanes : 0);
}

void register_indices(OpTable& t) {
    special<u32>(t, "sreg.%tid.x", [](const Warp& w, u32 l) { return w.thread_index[0][l]; });
    special<u32>(t, "sreg.%tid.y", [](const Warp& w, u32 l) { return w.thread_index[1][l]; });
    special<u32>(t, "sreg.%tid.z", [](const Warp& w, u32 l) { return w.thread_index[2][l]; });
    special<u32>(t, "sreg.%ntid.x", [](const Warp& w, u32) { return w.launch->block[0]; });
    special<u32>(t, "sreg.%ntid.y", [](const Warp& w, u32) { return w.launch->block[1]; });
    special<u32>(t, "sreg.%ntid.z", [](const Warp& w, u32) { return w.launch->block[2]; });
    special<u32>(t, "sreg.%ctaid.x", [](const Warp& w, u32) { return w.block_index[0]; });
    special<u32>(t, "sreg.%ctaid.y", [](const Warp& w, u32) { return w.block_index[1]; });
    special<u32>(t, "sreg.%ctaid.z", [](const Warp& w, u32) { return w.block_index[2]; });
    special<u32>(t, "sreg.%nctaid.x", [](const Warp& w, u32) { return w.launch->grid[0]; });
    special<u32>(t, "sreg.%nctaid.y", [](const Warp& w, u32) { return w.launch->grid[1]; });
    special<u32>(t, "sreg.%nctaid.z", [](const Warp& w, u32) { return w.launch->grid[2]; });
#define CLUSTER(name, axis)                                                                          \
    special<u32>(t, "sreg.%clusterid." name,                                                         \
                 [](const Warp& w, u32) { return w.block_index[axis] / w.launch->cluster[axis]; });  \
    special<u32>(t, "sreg.%nclusterid." name,                                                        \
                 [](const Warp& w, u32) { return w.launch->grid[axis] / w.launch->cluster[axis]; }); \
    special<u32>(t, "sreg.%cluster_ctaid." name,                                                     \
                 [](const Warp& w, u32) { return w.block_index[axis] % w.launch->cluster[axis]; });  \
    special<u32>(t, "sreg.%cluster_nctaid." name, [](const Warp& w, u32) { return w.launch->cluster[axis]; });
    CLUSTER("x", 0)
    CLUSTER("y", 1)
    CLUSTER("z", 2)
#undef CLUSTER
    special<u32>(t, "sreg.%cluster_ctarank", [](const Warp& w, u32) { return w.cluster_rank; });
    special<u32>(t, "sreg.%cluster_nctarank", [](const Warp& w, u32) { return w.cluster_blocks; });
    t.add({"explicit_cluster"}, {run_explicit_cluster, Slot::pred, {}});
    t.add({"map_shared"}, {run_map_shared, Slot::bits64, {Slot::bits64, Slot::bits32}});
    t.add({"shared_rank"}, {run_shared_rank, Slot::bits32, {Slot::bits64}});
}

}  // namespace

void register_special(OpTable& t) {
    register_indices(t);
    t.add({"local_address"}, {run_local_address, Slot::bits64, {}});
    t.add({"dynamic_shared_address"}, {run_dynamic_shared_address, Slot::bits64, {}});
    t.add({"param_address"}, {run_param_address, Slot::bits64, {Slot::bits64}});
    t.add({"in_space"}, {run_in_space, Slot::pred, {Slot::bits64}});
    special<u32>(t, "sreg.%laneid", [](const Warp&, u32 l) { return l; });
    special<u32>(t, "sreg.%warpid", [](const Warp& w, u32) { return w.index; });
    special<u32>(t, "sreg.%nwarpid", [](const Warp&, u32) { return 64; });
    special<u32>(t, "sreg.%smid", [](const Warp& w, u32) { return w.executor; });
    special<u32>(t, "sreg.%nsmid", [](const Warp& w, u32) { return w.launch->sm_count; });
    special<u64>(t, "sreg.%gridid", [](const Warp& w, u32) { return w.launch->grid_id; });
    special<u32>(t, "sreg.%lanemask_eq", [](const Warp&, u32 l) { return 1U << l; });
    special<u32>(t, "sreg.%lanemask_lt", [](const Warp&, u32 l) { return (1U << l) - 1; });
    special<u32>(t, "sreg.%lanemask_le", [](const Warp&, u32 l) { return (2U << l) - 1; });
    special<u32>(t, "sreg.%lanemask_gt", [](const Warp&, u32 l) { return ~((2U << l) - 1); });
    special<u32>(t, "sreg.%lanemask_ge", [](const Warp&, u32 l) { return ~((1U << l) - 1); });
    special<u32>(t, "sreg.%dynamic_smem_size", [](const Warp& w, u32) { return w.launch->dynamic_shared_bytes; });
    special<u32>(t, "sreg.%total_smem_size", [](const Warp& w, u32) { return w.shared_bytes; });
    special<u32>(t, "sreg.%aggr_smem_size", [](const Warp& w, u32) { return w.shared_bytes; });
    const auto reserved = [](const Warp& w, u32) { return w.shared_bytes - kReservedSharedBytes; };
    special<u32>(t, "sreg.%reserved_smem_offset_begin", reserved);
    special<u32>(t, "sreg.%reserved_smem_offset_0", reserved);
    special<u32>(t, "sreg.%reserved_smem_offset_1",
                 [](const Warp& w, u32) { return w.shared_bytes - kReservedSharedBytes / 2; });
    special<u32>(t, "sreg.%reserved_smem_offset_end", [](const Warp& w, u32) { return w.shared_bytes; });
    special<u32>(t, "sreg.%reserved_smem_offset_cap", [](const Warp&, u32) { return kReservedSharedBytes; });
    // A cooperative launch's workspace: envreg2 is the low half of its address, envreg1 the high half.
    special<u32>(t, "sreg.%envreg1", [](const Warp& w, u32) { return w.launch->grid_workspace >> 32; });
    special<u32>(t, "sreg.%envreg2", [](const Warp& w, u32) { return w.launch->grid_workspace; });
    static constexpr std::string_view kUnused[] = {
        "sreg.%envreg0",  "sreg.%envreg3",  "sreg.%envreg4",  "sreg.%envreg5",  "sreg.%envreg6",  "sreg.%envreg7",
        "sreg.%envreg8",  "sreg.%envreg9",  "sreg.%envreg10", "sreg.%envreg11", "sreg.%envreg12", "sreg.%envreg13",
        "sreg.%envreg14", "sreg.%envreg15", "sreg.%envreg16", "sreg.%envreg17", "sreg.%envreg18", "sreg.%envreg19",
        "sreg.%envreg20", "sreg.%envreg21", "sreg.%envreg22", "sreg.%envreg23", "sreg.%envreg24", "sreg.%envreg25",
        "sreg.%envreg26", "sreg.%envreg27", "sreg.%envreg28", "sreg.%envreg29", "sreg.%envreg30", "sreg.%envreg31",
        "sreg.%pm0",      "sreg.%pm1",      "sreg.%pm2",      "sreg.%pm3",      "sreg.%pm4",      "sreg.%pm5",
        "sreg.%pm6",      "sreg.%pm7"};
    for (const auto name : kUnused) {
        special<u32>(t, name, [](const Warp&, u32) { return 0; });
    }
    static constexpr std::string_view kUnusedWide[] = {"sreg.%pm0_64", "sreg.%pm1_64", "sreg.%pm2_64",
                                                       "sreg.%pm3_64", "sreg.%pm4_64", "sreg.%pm5_64",
                                                       "sreg.%pm6_64", "sreg.%pm7_64", "sreg.%current_graph_exec"};
    for (const auto name : kUnusedWide) {
        clock_register<u64>(t, name, [] { return u64{0}; });
    }
    clock_register<u32>(t, "sreg.%clock", [] { return cycles(); });
    clock_register<u32>(t, "sreg.%clock_hi", [] { return cycles() >> 32; });
    clock_register<u64>(t, "sreg.%clock64", [] { return cycles(); });
    clock_register<u64>(t, "sreg.%globaltimer", [] { return global_timer(); });
    clock_register<u32>(t, "sreg.%globaltimer_lo", [] { return global_timer(); });
    clock_register<u32>(t, "sreg.%globaltimer_hi", [] { return global_timer() >> 32; });
}

}  // namespace gpupool::softgpu::GPUPOOL_SOFTGPU_ISA
