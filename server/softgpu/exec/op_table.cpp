#include "server/softgpu/exec/op_table.h"

namespace gpupool::softgpu {

std::uint32_t slot_bytes(Slot slot) noexcept {
    switch (slot) {
        case Slot::none: return 0;
        case Slot::pred: return 4;
        case Slot::bits16: return 2 * kLaneCount;
        case Slot::bits32:
        case Slot::float32: return 4 * kLaneCount;
        case Slot::bits64:
        case Slot::float64: return 8 * kLaneCount;
    }
    return 0;
}

void OpTable::add(std::initializer_list<std::string_view> mnemonics, const Op& op) {
    for (const auto mnemonic : mnemonics) {
        ops_.emplace(mnemonic, op);
    }
}

const Op* OpTable::find(std::string_view mnemonic) const {
    const auto found = ops_.find(mnemonic);
    return found == ops_.end() ? nullptr : &found->second;
}

const OpTable& op_table() {
    static const OpTable& table = *[] {
        auto* result = new OpTable;
#if GPUPOOL_SOFTGPU_HAS_AVX2
        const bool wide =
            __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi");
#define X(file) (wide ? ops_avx2::register_##file : ops_base::register_##file)(*result);
#else
#define X(file) ops_base::register_##file(*result);
#endif
        GPUPOOL_SOFTGPU_OP_FILES(X)
#undef X
        return result;
    }();
    return table;
}

}  // namespace gpupool::softgpu
