// Loads and stores. The lowering looks up "ld.<memory type>.<slot bits>" and "st.<memory bits>.<slot bits>". Spaces and
// vectors are fields of the instruction: extra = number of elements (slots in aux at d or b), or 0 for a scalar.
//
// Elements are accessed with relaxed atomics, since a kernel may poll what another stream or the host writes.
#include "server/softgpu/exec/resolve.h"

namespace gpupool::softgpu::GPUPOOL_SOFTGPU_ISA {
namespace {

template <class T>
T read(std::uint64_t pointer) {
    return __atomic_load_n(reinterpret_cast<const T*>(pointer), __ATOMIC_RELAXED);
}

template <class T>
void write(std::uint64_t pointer, T value) {
    __atomic_store_n(reinterpret_cast<T*>(pointer), value, __ATOMIC_RELAXED);
}

template <class M, class R>
void run_load(Warp& w, const Inst& i) {
    LanePointers pointers;
    const std::uint32_t count = i.extra == 0 ? 1 : i.extra;
    if (!resolve(w, i, sizeof(M) * count, pointers, Access::read)) {
        return;
    }
    const std::uint32_t* slots = i.extra == 0 ? &i.d : w.current.frame->function->aux.data() + i.d;
    for (std::uint32_t element = 0; element < count; ++element) {
        if (slots[element] == kNoSlot) {
            continue;
        }
        R* d = w.reg<R>(slots[element]);
        const std::uint64_t offset = element * sizeof(M);
        each_lane(w.exec, [&](std::uint32_t l) { d[l] = static_cast<R>(read<M>(pointers[l] + offset)); });
    }
}

template <class M, class R>
void run_store(Warp& w, const Inst& i) {
    LanePointers pointers;
    const std::uint32_t count = i.extra == 0 ? 1 : i.extra;
    if (!resolve(w, i, sizeof(M) * count, pointers, Access::write)) {
        return;
    }
    const std::uint32_t* slots = i.extra == 0 ? &i.b : w.current.frame->function->aux.data() + i.b;
    for (std::uint32_t element = 0; element < count; ++element) {
        const R* b = w.reg<R>(slots[element]);
        const std::uint64_t offset = element * sizeof(M);
        each_lane(w.exec, [&](std::uint32_t l) { write<M>(pointers[l] + offset, static_cast<M>(b[l])); });
    }
}

// A kernel parameter at a fixed offset, the same for every lane.
template <class M, class R>
void run_uniform(Warp& w, const Inst& i) {
    M value;
    std::memcpy(&value, w.launch->params + i.imm, sizeof value);
    R* d = w.reg<R>(i.d);
    const R widened = static_cast<R>(value);
    each_lane(w.exec, [=](std::uint32_t l) { d[l] = widened; });
}

template <class M, class R>
void add_load(OpTable& t, std::string_view load, std::string_view uniform) {
    t.add({load}, {run_load<M, R>, slot_of<R>(), {}, Slot::none, Flow::checked});
    t.add({uniform}, {run_uniform<M, R>, slot_of<R>(), {}});
}

template <class M, class R>
void add_store(OpTable& t, std::string_view name) {
    t.add({name}, {run_store<M, R>, Slot::none, {slot_of<R>()}, Slot::none, Flow::checked});
}

// x86 needs one instruction for the strongest fence, so all fences use it.
void run_fence(Warp&, const Inst&) {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

}  // namespace

void register_memory(OpTable& t) {
#define LOAD(M, R, name) add_load<M, R>(t, "ld." name, "ldu." name);
    LOAD(u8, u16, "u8.16")
    LOAD(u8, u32, "u8.32")
    LOAD(u8, u64, "u8.64")
    LOAD(s8, s16, "s8.16")
    LOAD(s8, s32, "s8.32")
    LOAD(s8, s64, "s8.64")
    LOAD(u16, u16, "u16.16")
    LOAD(u16, u32, "u16.32")
    LOAD(u16, u64, "u16.64")
    LOAD(s16, s16, "s16.16")
    LOAD(s16, s32, "s16.32")
    LOAD(s16, s64, "s16.64")
    LOAD(u32, u32, "u32.32")
    LOAD(u32, u64, "u32.64")
    LOAD(s32, s32, "s32.32")
    LOAD(s32, s64, "s32.64")
    LOAD(u64, u64, "u64.64")
    LOAD(s64, s64, "s64.64")
#undef LOAD
    add_store<u8, u16>(t, "st.8.16");
    add_store<u8, u32>(t, "st.8.32");
    add_store<u8, u64>(t, "st.8.64");
    add_store<u16, u16>(t, "st.16.16");
    add_store<u16, u32>(t, "st.16.32");
    add_store<u16, u64>(t, "st.16.64");
    add_store<u32, u32>(t, "st.32.32");
    add_store<u32, u64>(t, "st.32.64");
    add_store<u64, u64>(t, "st.64.64");
    t.add({"fence"}, {run_fence});
}

}  // namespace gpupool::softgpu::GPUPOOL_SOFTGPU_ISA
