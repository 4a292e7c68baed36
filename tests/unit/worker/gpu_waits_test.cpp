// What waits for the GPU in the driver, and what the GPU waits for, are kept apart.
#include "server/worker/gpu_waits.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace gpupool::test {
namespace {

using worker::GpuWaits;
using worker::Helpers;
using worker::Inbox;

class GpuWaitsTest : public ::testing::Test {
  protected:
    ~GpuWaitsTest() override { helpers.stop(); }

    // Until a job has come, which runs.
    void run_jobs() {
        const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
        while (std::chrono::steady_clock::now() < end) {
            const Inbox::Batch batch = inbox.take();
            for (const auto& job : batch.jobs) {
                job();
            }
            if (!batch.jobs.empty()) {
                return;
            }
            std::this_thread::yield();
        }
        FAIL() << "nothing came";
    }

    Inbox inbox;
    Helpers helpers{inbox};
    GpuWaits waits{helpers};
};

TEST_F(GpuWaitsTest, ACallBeginsWhenNoWordIsWaitedForAndNoneIsUntilItHasEnded) {
    EXPECT_TRUE(waits.may_wait_for_word());
    std::atomic<bool> called{false}, go_on{false};
    bool done = false;
    waits.run(
        [&] {
            called = true;
            while (!go_on) {
                std::this_thread::yield();
            }
        },
        [&] { done = true; });
    EXPECT_FALSE(waits.may_wait_for_word()) << "or it might never begin";
    EXPECT_FALSE(waits.poll(true));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_FALSE(called);
    EXPECT_TRUE(waits.poll(false));
    while (!called) {
        std::this_thread::yield();
    }
    EXPECT_FALSE(waits.may_wait_for_word());
    go_on = true;
    run_jobs();
    EXPECT_TRUE(done);
    EXPECT_TRUE(waits.may_wait_for_word());
    EXPECT_FALSE(waits.poll(false));
}

}  // namespace
}  // namespace gpupool::test
