// What the environment sets, read once.
//
//   GPUPOOL_SOFTGPU_DEVICES             how many devices there are; 1
//   GPUPOOL_SOFTGPU_MEMORY              each one's memory, like 16G; 4G
//   GPUPOOL_SOFTGPU_KERNEL_LIMIT_MS     a kernel that runs for longer ends with CUDA_ERROR_LAUNCH_TIMEOUT; none
//   GPUPOOL_SOFTGPU_KERNEL_DURATION_US  what a kernel takes at least; nothing
//   GPUPOOL_SOFTGPU_COPY_RATE           bytes a second between host and device, like 100M; as fast as it goes
//
// The last two make work take the time that it would on a GPU of one's choice, so that sharing and overlap can be seen.
// Threads: any. Errors: a line on stderr; what is no number is as if it were not set.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace gpupool::softgpu {

struct Settings {
    int devices = 1;
    std::uint64_t memory_bytes = std::uint64_t{4} << 30;
    std::chrono::milliseconds kernel_limit{0};
    std::chrono::microseconds kernel_duration{0};
    std::uint64_t copy_bytes_per_second = 0;
};
const Settings& settings();

using Clock = std::chrono::steady_clock;
// When a copy of so many bytes between host and device that began then may be done.
Clock::time_point end_of_copy(Clock::time_point begin, std::uint64_t bytes);
// Sleeps until then; not once `stop` is set.
void idle_until(Clock::time_point end, const std::atomic<bool>& stop);

}  // namespace gpupool::softgpu
