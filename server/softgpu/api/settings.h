// Settings from the environment, read once.
//
//   GPUPOOL_SOFTGPU_DEVICES             number of devices; default 1
//   GPUPOOL_SOFTGPU_PROCESSORS          multiprocessors of each device, up to 512; default: those of this machine
//   GPUPOOL_SOFTGPU_MEMORY              memory of each device, such as 16G; default 4G
//   GPUPOOL_SOFTGPU_CONTEXT             device memory that a context takes; default 0
//   GPUPOOL_SOFTGPU_KERNEL_LIMIT_MS     a kernel that runs longer ends with CUDA_ERROR_LAUNCH_TIMEOUT; default none
//   GPUPOOL_SOFTGPU_KERNEL_DURATION_US  minimum duration of a kernel; default 0
//   GPUPOOL_SOFTGPU_COPY_RATE           bytes per second between host and device, such as 100M; default unlimited
//
// The last two let work take as long as on a chosen GPU, so that sharing and overlap can be observed.
// Threads: any. Errors: a line on stderr; a value that is not a number is ignored.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace gpupool::softgpu {

struct Settings {
    int devices = 1;
    std::uint32_t processors = 0;  // 0: as many as threads run blocks
    std::uint64_t memory_bytes = std::uint64_t{4} << 30;
    std::uint64_t context_bytes = 0;
    std::chrono::milliseconds kernel_limit{0};
    std::chrono::microseconds kernel_duration{0};
    std::uint64_t copy_bytes_per_second = 0;
};
const Settings& settings();

using Clock = std::chrono::steady_clock;
// When a copy of `bytes` bytes between host and device that began at `begin` may end.
Clock::time_point end_of_copy(Clock::time_point begin, std::uint64_t bytes);
// Sleeps until `end`, or until `stop` is set.
void idle_until(Clock::time_point end, const std::atomic<bool>& stop);

}  // namespace gpupool::softgpu
