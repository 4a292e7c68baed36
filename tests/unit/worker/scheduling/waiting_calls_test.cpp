// A call that waits for the GPU counts as outstanding from its request until the dispatcher has been notified of its
// end.
#include "server/worker/scheduling/waiting_calls.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace gpupool::test {
namespace {

using worker::Helpers;
using worker::Inbox;
using worker::WaitingCalls;

class WaitingCallsTest : public ::testing::Test {
  protected:
    ~WaitingCallsTest() override { helpers.stop(); }

    // Waits until a job has arrived, and runs it.
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
        FAIL() << "no job arrived";
    }

    Inbox inbox;
    Helpers helpers{inbox};
    WaitingCalls calls{helpers};
};

TEST_F(WaitingCallsTest, CallCountsUntilTheDispatcherSeesItsEnd) {
    EXPECT_FALSE(calls.any());
    std::atomic<bool> go_on{false};
    bool under_way_when_done = true;
    calls.run([&] { go_on.wait(false); }, [&] { under_way_when_done = calls.any(); });
    EXPECT_TRUE(calls.any()) << "even before a thread has started it";
    go_on = true;
    go_on.notify_all();
    run_jobs();
    EXPECT_FALSE(under_way_when_done) << "the end's action may use the driver";
    EXPECT_FALSE(calls.any());
}

}  // namespace
}  // namespace gpupool::test
