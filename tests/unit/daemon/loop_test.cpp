// The event loop: timers under a clock that the test advances, watches of descriptors, the background thread.
#include "server/daemon/loop.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "common/unique_fd.h"
#include "tests/support/manual_clock.h"

namespace gpupool::test {
namespace {

using daemon::Background;
using daemon::Loop;
using daemon::Timer;
using daemon::Watch;
using std::chrono::milliseconds;

class LoopTest : public ::testing::Test {
  protected:
    LoopTest() {
        int ends[2];
        EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
        here_.reset(ends[0]);
        there_.reset(ends[1]);
    }
    void send() const { EXPECT_EQ(::write(there_.get(), "x", 1), 1); }
    void receive() const {
        char byte = 0;
        EXPECT_EQ(::read(here_.get(), &byte, 1), 1);
    }

    ManualClock clock_;
    Loop loop_{clock_};
    UniqueFd here_, there_;
    int calls_ = 0;
};

TEST_F(LoopTest, CallsTimersInTheirOrder) {
    std::string order;
    Timer first(loop_, [&] { order += "1"; });
    Timer second(loop_, [&] { order += "2"; });
    Timer never(loop_, [&] { order += "n"; });
    second.set_after(milliseconds(20));
    first.set_after(milliseconds(10));
    never.set(TimeSource::kNever);
    loop_.poll();
    EXPECT_EQ(order, "");
    clock_.advance(milliseconds(10));
    loop_.poll();
    EXPECT_EQ(order, "1");
    first.set_after(milliseconds(30));
    clock_.advance(milliseconds(30));
    loop_.poll();
    EXPECT_EQ(order, "121");
}

TEST_F(LoopTest, TimersMayBeSetAndDestroyedWhileOthersAreCalled) {
    std::string order;
    std::unique_ptr<Timer> victim;
    std::unique_ptr<Timer> killer;
    killer = std::make_unique<Timer>(loop_, [&] {
        order += "k";
        victim.reset();
        killer.reset();
    });
    victim = std::make_unique<Timer>(loop_, [&] { order += "v"; });
    Timer again(loop_, [&] {
        order += "a";
        if (order.size() < 3) {
            again.set_after(milliseconds(1));
        }
    });
    again.set(loop_.now());
    killer->set_after(milliseconds(1));
    victim->set_after(milliseconds(1));
    loop_.poll();
    clock_.advance(milliseconds(1));
    loop_.poll();
    EXPECT_EQ(order, "aka");
}

TEST_F(LoopTest, WatchesOnceOrAgainAndAgain) {
    Watch once(loop_);
    once.wait(here_.get(), Watch::For::reading, [&] { ++calls_; });
    loop_.poll();
    EXPECT_EQ(calls_, 0);
    send();
    loop_.poll();
    EXPECT_EQ(calls_, 1);
    loop_.poll();
    EXPECT_EQ(calls_, 1);
    once.wait(here_.get(), Watch::For::reading, [&] { ++calls_; });
    loop_.poll();
    EXPECT_EQ(calls_, 2) << "a byte that arrived before the wait counts";
    receive();
    once.keep_waiting(here_.get(), [&] {
        ++calls_;
        receive();
    });
    for (int i = 0; i < 3; ++i) {
        send();
        loop_.poll();
    }
    EXPECT_EQ(calls_, 5);
    once.stop();
    send();
    loop_.poll();
    EXPECT_EQ(calls_, 5);
}

TEST_F(LoopTest, AWatchMayBeDestroyedOrTurnedInItsCallback) {
    auto watch = std::make_unique<Watch>(loop_);
    watch->keep_waiting(here_.get(), [&] {
        watch->wait(here_.get(), Watch::For::writing, [&] {
            ++calls_;
            watch.reset();
        });
    });
    send();
    loop_.poll();
    EXPECT_EQ(calls_, 1);
    EXPECT_EQ(watch, nullptr);
}

// A worker inherits descriptors that the daemon has watched, and goes on using them.
TEST_F(LoopTest, AStoppedWatchHasGivenTheDescriptorUp) {
    const UniqueFd taken_over(::dup(here_.get()));
    auto watch = std::make_unique<Watch>(loop_);
    watch->keep_waiting(here_.get(), [&] { ++calls_; });
    loop_.poll();
    watch.reset();
    EXPECT_GE(::fcntl(here_.get(), F_GETFD), 0) << "it is the owner's to close";
    here_.reset();
    Watch other(loop_);  // Asio reuses the memory of the first
    UniqueFd ends[2];
    int made[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, made), 0);
    ends[0].reset(made[0]);
    ends[1].reset(made[1]);
    other.keep_waiting(ends[0].get(), [&] { ++calls_; });
    send();
    loop_.poll();
    EXPECT_EQ(calls_, 0);
}

TEST_F(LoopTest, CallsSoonWithoutADescriptor) {
    auto watch = std::make_unique<Watch>(loop_);
    watch->wait(-1, Watch::For::reading, [&] { ++calls_; });
    EXPECT_EQ(calls_, 0);
    loop_.poll();
    EXPECT_EQ(calls_, 1);
    watch->wait(-1, Watch::For::reading, [&] { ++calls_; });
    watch.reset();
    loop_.poll();
    EXPECT_EQ(calls_, 1);
}

TEST(BackgroundTest, WorksOnItsThreadAndReportsOnTheLoop) {
    Loop loop;
    Background background(loop);
    std::thread::id worked, reported;
    bool quiet = false;
    background.run(
        [&] {
            sigset_t blocked;
            ::pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
            quiet = ::sigismember(&blocked, SIGTERM) == 1;
            worked = std::this_thread::get_id();
            return std::make_unique<int>(7);
        },
        [&](const std::unique_ptr<int>& result) {
            EXPECT_EQ(*result, 7);
            reported = std::this_thread::get_id();
            loop.stop();
        });
    loop.run();
    EXPECT_EQ(reported, std::this_thread::get_id());
    EXPECT_NE(worked, reported);
    EXPECT_TRUE(quiet) << "signals go to the daemon's other thread";
}

TEST(LoopTimeTest, RunsTimersByTheSystemsClock) {
    Loop loop;
    std::string order;
    Timer later(loop, [&] {
        order += "2";
        loop.stop();
    });
    Timer sooner(loop, [&] { order += "1"; });
    later.set_after(milliseconds(2));
    sooner.set_after(milliseconds(1));
    loop.run();
    EXPECT_EQ(order, "12");
}

}  // namespace
}  // namespace gpupool::test
