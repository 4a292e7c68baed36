// Flags in Inst::extra of asynchronous copies and mbarrier instructions.
//
// Set by lower_async.cpp, read by ops_async.cpp. Threads, ownership: none.
#pragma once

#include <cstdint>

namespace gpupool::softgpu::async_form {

constexpr std::uint32_t kDrops = 1;      // arrive_drop: later phases expect fewer
constexpr std::uint32_t kCompletes = 2;  // complete_tx rather than expect_tx
constexpr std::uint32_t kCounted = 4;    // cp.async.mbarrier.arrive.noinc
constexpr std::uint32_t kByParity = 8;   // test_wait.parity
constexpr std::uint32_t kToShared = 16;  // of a bulk copy
constexpr std::uint32_t kFromShared = 32;

}  // namespace gpupool::softgpu::async_form
