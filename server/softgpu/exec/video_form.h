// The form of a video instruction, packed into Inst::imm.
//
// Set by lower_packed.cpp, read by ops_packed.cpp. Threads, ownership: none.
#pragma once

#include <cstdint>

namespace gpupool::softgpu {

struct VideoForm {
    std::uint8_t operation = 0;   // add, subtract, absolute difference, min, max, average, shl, shr, set, multiply-add
    std::uint8_t lanes = 0;       // 0: scalar; 2 or 4 parts of 32 bits
    std::uint8_t select[2] = {};  // of a and b: 0 all, 1-4 a byte, 5-6 a half
    std::uint8_t merge = 0;       // into c: the same
    std::uint8_t secondary = 0;   // with c: 0 none, 1 add, 2 min, 3 max
    std::uint8_t comparison = 0;  // eq, ne, lt, le, gt, ge
    std::uint8_t shift = 0;       // of a product
    bool saturate = false, wraps = false;
    bool is_signed[3] = {};  // d, a, b

    std::uint64_t packed() const {
        return std::uint64_t{operation} | std::uint64_t{lanes} << 4 | std::uint64_t{select[0]} << 8 |
               std::uint64_t{select[1]} << 12 | std::uint64_t{merge} << 16 | std::uint64_t{secondary} << 20 |
               std::uint64_t{comparison} << 24 | std::uint64_t{shift} << 28 | std::uint64_t{saturate} << 36 |
               std::uint64_t{wraps} << 37 | std::uint64_t{is_signed[0]} << 38 | std::uint64_t{is_signed[1]} << 39 |
               std::uint64_t{is_signed[2]} << 40;
    }
    static VideoForm unpacked(std::uint64_t bits) {
        const auto field = [&](int at) { return static_cast<std::uint8_t>(bits >> at & 15); };
        VideoForm form;
        form.operation = field(0), form.lanes = field(4), form.select[0] = field(8), form.select[1] = field(12);
        form.merge = field(16), form.secondary = field(20), form.comparison = field(24), form.shift = field(28);
        form.saturate = (bits >> 36 & 1) != 0, form.wraps = (bits >> 37 & 1) != 0;
        for (int k = 0; k < 3; ++k) {
            form.is_signed[k] = (bits >> (38 + k) & 1) != 0;
        }
        return form;
    }
};

}  // namespace gpupool::softgpu
