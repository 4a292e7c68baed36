// How memory instructions encode what they address, in Inst::mode and Inst::extra.
//
// Set by the lowering, read by ops_memory.cpp and ops_atomic.cpp. Threads, ownership: none.
#pragma once

#include <cstdint>

namespace gpupool::softgpu {

// Inst::mode of ld, st, atom, red.
enum class MemorySpace : std::uint8_t {
    generic,
    global,  // also const: both are plain host addresses
    shared,
    local,
    entry_param,  // the launch's parameter buffer
    area,         // a parameter area of the frame, one per lane
};

constexpr std::uint8_t kMemorySpaceMask = 7;
constexpr std::uint8_t kAddressIs32Bits = 8;  // the base slot contains 32-bit values

constexpr std::uint8_t kMayPoll = 16;  // volatile, acquire or atomic: a loop around it may be polling

}  // namespace gpupool::softgpu
