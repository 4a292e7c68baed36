// Operands of a warp's matrix instructions: wmma, mma.sync, ldmatrix, stmatrix, movmatrix.
//
// Fragments of mma.sync are laid out as the PTX manual specifies (lower_matrix.cpp). The layout of wmma fragments is
// not specified: here the 32 lanes of a register contain consecutive elements of the matrix in row-major order, so that
// a load is a plain copy.
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
    bool exclusive_or = false;  // of b1: multiply bits by exclusive or
    std::vector<std::uint32_t> a_slots, b_slots, c_slots, d_slots;
    // For mma.sync: row-major indices of the elements, ordered by register, lane and bit. Empty for wmma.
    std::vector<std::uint16_t> a_places, b_places, c_places, d_places;

    // Loads and stores use `d` and `d_slots`, and `rows` and `columns` of the matrix.
    std::uint32_t rows = 0, columns = 0;
    std::uint32_t stride = ~0U;  // slot with the number of elements between rows (or columns); none: contiguous
    bool by_column = false;      // column-major in memory
    bool transposed = false;     // ldmatrix.trans
};

}  // namespace gpupool::softgpu
