// The dispatcher's inbox: order, its bound, and its end, from several threads.
#include "server/worker/inbox.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "server/worker/helpers.h"

namespace gpupool::test {
namespace {

using namespace std::chrono_literals;
using worker::Frame;
using worker::Helpers;
using worker::Inbox;

std::shared_ptr<Frame> frame_of(std::size_t bytes) {
    auto frame = std::make_shared<Frame>();
    frame->bytes = bytes;
    return frame;
}

TEST(WorkerInbox, TakesWhatThereIs) {
    Inbox inbox;
    EXPECT_TRUE(inbox.take().empty());
    EXPECT_TRUE(inbox.push(frame_of(8)));
    inbox.post([] {});
    inbox.poke();
    const Inbox::Batch batch = inbox.take();
    EXPECT_EQ(batch.frames.size(), 1u);
    EXPECT_EQ(batch.jobs.size(), 1u);
    EXPECT_TRUE(batch.poked);
    EXPECT_TRUE(inbox.take().empty());
}

TEST(WorkerInbox, FramesKeepTheirOrderAndJobsAllArrive) {
    Inbox inbox;
    constexpr std::size_t kFrames = 2000;
    constexpr int kJobs = 500, kPosters = 3;
    std::thread receiver([&] {
        for (std::size_t i = 1; i <= kFrames; ++i) {
            inbox.push(frame_of(i));
        }
    });
    std::vector<std::thread> posters;
    int done = 0;  // the dispatcher's alone: jobs run there
    for (int i = 0; i < kPosters; ++i) {
        posters.emplace_back([&] {
            for (int job = 0; job < kJobs; ++job) {
                inbox.post([&] { ++done; });
                inbox.poke();
            }
        });
    }
    std::size_t expected = 1;
    while (expected <= kFrames || done < kJobs * kPosters) {
        Inbox::Batch batch = inbox.take();
        for (const auto& frame : batch.frames) {
            ASSERT_EQ(frame->bytes, expected++);
        }
        for (const auto& job : batch.jobs) {
            job();
        }
        if (batch.empty()) {
            inbox.wait(1ms);
        }
    }
    receiver.join();
    for (std::thread& poster : posters) {
        poster.join();
    }
    EXPECT_EQ(done, kJobs * kPosters);
}

TEST(WorkerInbox, AFullInboxMakesTheReceiverWait) {
    Inbox inbox;
    ASSERT_TRUE(inbox.push(frame_of(Inbox::kMaxFrameBytes)));
    std::atomic<bool> through{false};
    std::thread receiver([&] {
        EXPECT_TRUE(inbox.push(frame_of(1)));
        through = true;
    });
    std::this_thread::sleep_for(30ms);
    EXPECT_FALSE(through);
    EXPECT_EQ(inbox.take().frames.size(), 1u);
    receiver.join();
    EXPECT_TRUE(through);
    EXPECT_EQ(inbox.take().frames.size(), 1u);
}

TEST(WorkerInbox, ClosingWakesEverybody) {
    Inbox inbox;
    ASSERT_TRUE(inbox.push(frame_of(Inbox::kMaxFrameBytes)));
    std::thread receiver([&] { EXPECT_FALSE(inbox.push(frame_of(1))); });
    std::this_thread::sleep_for(5ms);
    inbox.close();
    receiver.join();
    EXPECT_TRUE(inbox.closed());
    inbox.wait();  // does not
    EXPECT_FALSE(inbox.push(frame_of(1)));
}

TEST(WorkerHelpers, WorkRunsElsewhereAndItsEndHere) {
    Inbox inbox;
    Helpers helpers(inbox);
    const auto here = std::this_thread::get_id();
    constexpr int kJobs = 100;
    std::atomic<int> worked{0};
    int done = 0;
    for (int i = 0; i < kJobs; ++i) {
        helpers.run(
            [&] {
                EXPECT_NE(std::this_thread::get_id(), here);
                ++worked;
            },
            [&] {
                EXPECT_EQ(std::this_thread::get_id(), here);
                ++done;
            });
    }
    while (done < kJobs) {
        inbox.wait(1ms);
        for (const auto& job : inbox.take().jobs) {
            job();
        }
    }
    EXPECT_EQ(worked, kJobs);
}

TEST(WorkerHelpers, JobsThatWaitForEachOtherDoNotDeadlock) {
    Inbox inbox;
    Helpers helpers(inbox);
    std::atomic<bool> go{false}, went{false};
    helpers.run(
        [&] {
            while (!go) {
                std::this_thread::yield();
            }
            went = true;
        },
        [] {});
    helpers.run([&] { go = true; }, [] {});
    for (int i = 0; i < 5000 && !went; ++i) {
        std::this_thread::sleep_for(1ms);
    }
    EXPECT_TRUE(went);
    go = true;
}

}  // namespace
}  // namespace gpupool::test
