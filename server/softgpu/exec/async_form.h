// How an asynchronous copy or an mbarrier instruction tells its operation what it does: Inst::extra.
//
// Shared by lower_async.cpp and ops_async.cpp. Threads, ownership: none.
#pragma once

#include <cstdint>

namespace gpupool::softgpu::async_form {

constexpr std::uint32_t drops = 1;       // arrive_drop: later phases expect fewer
constexpr std::uint32_t completes = 2;   // complete_tx rather than expect_tx
constexpr std::uint32_t counted = 4;     // cp.async.mbarrier.arrive.noinc
constexpr std::uint32_t by_parity = 8;   // test_wait.parity
constexpr std::uint32_t to_shared = 16;  // of a bulk copy
constexpr std::uint32_t from_shared = 32;

}  // namespace gpupool::softgpu::async_form
