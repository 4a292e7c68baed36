// How `cvt` tells its operation the rounding and the flags: Inst::mode.
//
// Shared by the lowering and by ops_convert.cpp. Threads, ownership: none.
#pragma once

#include <cstdint>

namespace gpupool::softgpu::convert_mode {

constexpr std::uint8_t nearest = 0;  // .rn, .rni, or none
constexpr std::uint8_t zero = 1;     // .rz, .rzi
constexpr std::uint8_t down = 2;     // .rm, .rmi
constexpr std::uint8_t up = 3;       // .rp, .rpi
constexpr std::uint8_t round_mask = 3;
constexpr std::uint8_t finite = 0x04;    // .satfinite
constexpr std::uint8_t away = 0x08;      // .rna of tf32: ties away from zero
constexpr std::uint8_t integral = 0x10;  // .rni and the like: to an integral value
constexpr std::uint8_t flush = 0x20;
constexpr std::uint8_t saturate = 0x40;
constexpr std::uint8_t relu = 0x80;

}  // namespace gpupool::softgpu::convert_mode
