// The dispatcher allocates no memory for a launch.

#include <gtest/gtest.h>

#include <atomic>

#include "tests/support/allocations.h"
#include "tests/support/event_counter.h"
#include "tests/unit/worker/scheduling/launching_session.h"

namespace gpupool::test {
namespace {

constexpr std::size_t kFrames = 32, kLaunchesInFrame = 256, kWarmUpFrames = 8;

std::atomic<std::size_t> launched{0};
std::atomic<std::uint64_t> counted_before{0}, counted_after{0};
EventCounter done;

driver::Library counting_driver() {
    driver::Library library;
    add_idle_gpu(library.api);
    library.api.cuLaunchKernel = [](CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                                    CUstream, void**, void**) {
        const std::size_t number = launched + 1;  // only the dispatcher launches here
        if (number == kWarmUpFrames * kLaunchesInFrame) {
            counted_before = allocations_of_thread;
        } else if (number == (kWarmUpFrames + kFrames) * kLaunchesInFrame) {
            counted_after = allocations_of_thread;
            done.add();
        }
        launched = number;
        return CUDA_SUCCESS;
    };
    return library;
}

TEST(WorkerLaunches, IssueWithoutAllocating) {
    if (!count_allocations()) {
        GTEST_SKIP() << "allocations are counted only under a sanitizer";
    }
    launched = 0;
    done.reset();
    LaunchingSession session(counting_driver(), 1, {});
    const std::array<unsigned char, 200> arguments{};
    for (std::size_t i = 0; i < kWarmUpFrames + kFrames; ++i) {
        FrameOfCommands frame = session.frame();
        for (std::size_t launch = 0; launch < kLaunchesInFrame; ++launch) {
            session.add_launch(frame, 0, arguments.data(), arguments.size());
        }
        session.send(frame);
    }
    ASSERT_TRUE(done.wait_for(1));
    // Marks, one per 64 launches, and the inbox may allocate.
    EXPECT_LT(counted_after - counted_before, kFrames * kLaunchesInFrame / 16);
}

}  // namespace
}  // namespace gpupool::test
