// The dispatcher's inbox: order, bound and end, with several threads.
#include "server/worker/dispatch/inbox.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <future>
#include <thread>

#include "protocol/wire/channel.h"
#include "server/worker/dispatch/helpers.h"
#include "tests/support/event_counter.h"
#include "tests/support/manual_clock.h"
#include "tests/support/transport/inproc/connection.h"
#include "tests/unit/thread_shortage.h"

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

TEST(WorkerInbox, TakesAllFrames) {
    Inbox inbox;
    EXPECT_TRUE(inbox.take().empty());
    EXPECT_TRUE(inbox.push(frame_of(8)));
    inbox.post([] {});
    inbox.wake();
    const Inbox::Batch batch = inbox.take();
    EXPECT_EQ(batch.frames.size(), 1u);
    EXPECT_EQ(batch.jobs.size(), 1u);
    EXPECT_TRUE(batch.woken);
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
    int done = 0;  // accessed only by the dispatcher, which runs the jobs
    for (int i = 0; i < kPosters; ++i) {
        posters.emplace_back([&] {
            for (int job = 0; job < kJobs; ++job) {
                inbox.post([&] { ++done; });
                inbox.wake();
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

TEST(WorkerInbox, FullInboxBlocksTheReceiver) {
    ManualClock clock;
    Inbox inbox(clock);
    ASSERT_TRUE(inbox.push(frame_of(Inbox::kMaxFrameBytes)));
    std::atomic<bool> through{false};
    std::thread receiver([&] {
        EXPECT_TRUE(inbox.push(frame_of(1)));
        through = true;
    });
    ASSERT_TRUE(clock.wait_for_waiters(1));
    EXPECT_FALSE(through);
    EXPECT_EQ(inbox.take().frames.size(), 1u);
    receiver.join();
    EXPECT_TRUE(through);
    EXPECT_EQ(inbox.take().frames.size(), 1u);
}

TEST(WorkerInbox, FullInboxAdmitsFramesWhileTheDispatcherWaits) {
    ManualClock clock;
    Inbox inbox(clock);
    ASSERT_TRUE(inbox.push(frame_of(Inbox::kMaxFrameBytes)));
    std::thread receiver([&] { EXPECT_TRUE(inbox.push(frame_of(1))); });
    inbox.let_through(true);
    receiver.join();
    EXPECT_TRUE(inbox.push(frame_of(1u << 30)));
    std::atomic<bool> through{false};
    std::thread without_end([&] {
        EXPECT_TRUE(inbox.push(frame_of(1)));
        through = true;
    });
    ASSERT_TRUE(clock.wait_for_waiters(1));
    EXPECT_FALSE(through) << "a client that never reads is slowed down all the same";
    EXPECT_EQ(inbox.take().frames.size(), 3u);
    without_end.join();
    inbox.let_through(false);
}

// As between a worker and its client: the receiving thread, which reads acknowledgements, fills the inbox.
class InboxFiller final : public wire::Receiver {
  public:
    explicit InboxFiller(Inbox& inbox) : inbox_(inbox) {}
    std::span<std::byte> bulk_destination(std::uint64_t, std::uint64_t, std::size_t) override { return {}; }
    void on_bulk(std::uint64_t, std::uint64_t, std::size_t) override {}
    void on_frame(wire::FrameType, std::unique_ptr<std::byte[]>, std::size_t bytes) override {
        inbox_.push(frame_of(bytes));
    }
    void on_closed(const Error&) override { inbox_.close(); }
    void on_append_waits(bool waits) override { inbox_.let_through(waits); }

  private:
    Inbox& inbox_;
};

TEST(WorkerInbox, HeavyTrafficBothWaysDoesNotDeadlock) {
    constexpr std::size_t kRecordBytes = 64u << 10, kRecords = 3 * Inbox::kMaxFrameBytes / kRecordBytes;
    Inbox inbox, sink;
    InboxFiller worker_side(inbox), client_side(sink);
    auto [near, far] = transport::inproc::make_pair();
    wire::Limits limits;
    limits.retained_bytes = 1u << 20;
    wire::Channel worker(std::move(near), worker_side, limits);
    wire::Channel client(std::move(far), client_side, limits);
    worker.start();
    client.start();
    const auto send = [](wire::Channel& channel, wire::FrameType type) {
        for (std::size_t i = 0; i < kRecords; ++i) {
            EXPECT_TRUE(channel.append(type, kRecordBytes, [](std::byte* at) { std::memset(at, 0, kRecordBytes); }));
        }
    };
    // The client's receiving thread keeps up. This thread is the dispatcher, which drains nothing while it replies.
    std::atomic<bool> ending{false};
    std::thread keeping_up([&] {
        while (!ending) {
            sink.wait(1ms);
            (void)sink.take();
        }
    });
    std::thread sender([&] { send(client, wire::FrameType::commands); });
    auto answered = std::async(std::launch::async, [&] { send(worker, wire::FrameType::replies); });
    const bool no_deadlock = answered.wait_for(60s) == std::future_status::ready;
    EXPECT_TRUE(no_deadlock);
    std::size_t taken = 0;
    while (no_deadlock && taken < kRecords * kRecordBytes) {
        inbox.wait(1ms);
        for (const auto& frame : inbox.take().frames) {
            taken += frame->bytes;
        }
    }
    inbox.close();
    sink.close();
    ending = true;
    sender.join();
    keeping_up.join();
}

TEST(WorkerInbox, DispatcherSleepsUntilThereIsSomethingOrTheTimeIsOver) {
    ManualClock clock;
    Inbox inbox(clock);
    std::thread dispatcher([&] {
        inbox.wait(20ms);
        EXPECT_FALSE(inbox.has_news());
        inbox.wait(20ms);
        EXPECT_TRUE(inbox.has_news());
    });
    ASSERT_TRUE(clock.wait_for_wait_until(20ms));
    clock.advance(20ms);
    ASSERT_TRUE(clock.wait_for_wait_until(20ms));
    inbox.wake();
    dispatcher.join();
}

TEST(WorkerInbox, CloseWakesAllWaiters) {
    ManualClock clock;
    Inbox inbox(clock);
    ASSERT_TRUE(inbox.push(frame_of(Inbox::kMaxFrameBytes)));
    std::thread receiver([&] { EXPECT_FALSE(inbox.push(frame_of(1))); });
    ASSERT_TRUE(clock.wait_for_waiters(1));
    inbox.close();
    receiver.join();
    inbox.wait();  // returns at once
    EXPECT_FALSE(inbox.push(frame_of(1)));
}

TEST(WorkerHelpers, WorkRunsOnAHelperAndItsEndOnTheDispatcher) {
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

TEST(WorkerHelpers, ExistingThreadsDoTheWorkWhenNoMoreCanStart) {
    Inbox inbox;
    Helpers helpers(inbox);
    const ThreadShortage shortage;
    int done = 0;
    for (int i = 0; i < 20; ++i) {
        helpers.run([] {}, [&] { ++done; });
    }
    while (done < 20) {
        inbox.wait(1ms);
        for (const auto& job : inbox.take().jobs) {
            job();
        }
    }
}

TEST(WorkerHelpers, JobsThatWaitForEachOtherDoNotDeadlock) {
    Inbox inbox;
    Helpers helpers(inbox);
    EventCounter go, went;
    helpers.run(
        [&] {
            EXPECT_TRUE(go.wait_for(1));
            went.add();
        },
        [] {});
    helpers.run([&] { go.add(); }, [] {});
    EXPECT_TRUE(went.wait_for(1));
}

}  // namespace
}  // namespace gpupool::test
