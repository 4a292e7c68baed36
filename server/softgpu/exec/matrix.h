// What a matrix instruction of a warp works on: wmma, mma.sync, ldmatrix, stmatrix, movmatrix.
//
// Fragments. mma.sync's are laid out as the PTX manual says (lower_matrix.cpp). wmma's are nobody's business but its
// own: a register's 32 lanes hold consecutive elements of the matrix, row by row, so that loading one is copying.
//
// Ownership: forms belong to their CompiledFunction. Threads, errors: none.
#pragma once

#include <cstdint>
#include <vector>

#include "server/softgpu/exec/memory_form.h"

namespace gpupool::softgpu {

enum class Element : std::uint8_t { none, f16, bf16, tf32, f32, f64, s8, u8, s4, u4, b1, s32, e4m3, e5m2 };

constexpr std::uint32_t element_bits(Element element) {
    switch (element) {
        case Element::b1: return 1;
        case Element::s4:
        case Element::u4: return 4;
        case Element::s8:
        case Element::u8:
        case Element::e4m3:
        case Element::e5m2: return 8;
        case Element::f16:
        case Element::bf16: return 16;
        case Element::f64: return 64;
        default: return 32;
    }
}

struct MatrixForm {
    std::uint32_t m = 0, n = 0, k = 0;
    Element a = Element::none, b = Element::none, c = Element::none, d = Element::none;
    bool saturate = false;
    bool exclusive_or = false;  // of b1: how bits are multiplied
    std::vector<std::uint32_t> a_slots, b_slots, c_slots, d_slots;
    // Of mma.sync: where the elements lie, in the order of registers, lanes, and bits; row by row. Empty for wmma.
    std::vector<std::uint16_t> a_places, b_places, c_places, d_places;

    // Loads and stores use `d` and `d_slots`, and `rows` and `columns` for the matrix.
    std::uint32_t rows = 0, columns = 0;
    std::uint32_t stride = ~0U;  // slot of the elements between rows (or columns); none: they adjoin
    bool by_column = false;      // in memory
    bool transposed = false;     // ldmatrix.trans
};

}  // namespace gpupool::softgpu
