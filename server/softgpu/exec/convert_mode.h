// Rounding and flags of `cvt` in Inst::mode.
//
// Set by the lowering, read by ops_convert.cpp. Threads, ownership: none.
#pragma once

#include <cstdint>

namespace gpupool::softgpu::convert_mode {

constexpr std::uint8_t kNearest = 0;  // .rn, .rni, or none
constexpr std::uint8_t kZero = 1;     // .rz, .rzi
constexpr std::uint8_t kDown = 2;     // .rm, .rmi
constexpr std::uint8_t kUp = 3;       // .rp, .rpi
constexpr std::uint8_t kRoundMask = 3;
constexpr std::uint8_t kFinite = 0x04;    // .satfinite
constexpr std::uint8_t kAway = 0x08;      // .rna of tf32: ties away from zero
constexpr std::uint8_t kIntegral = 0x10;  // .rni and the like: to an integral value
constexpr std::uint8_t kFlush = 0x20;
constexpr std::uint8_t kSaturate = 0x40;
constexpr std::uint8_t kRelu = 0x80;

}  // namespace gpupool::softgpu::convert_mode
