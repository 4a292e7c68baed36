#include "common/clock.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "tests/support/manual_clock.h"
#include "tests/support/waiting.h"

namespace gpupool::test {
namespace {

using namespace std::chrono_literals;

TEST(SystemClock, WaitsAsConditionsDo) {
    TimeSource& clock = TimeSource::system();
    Mutex mutex;
    Condition condition;
    UniqueLock lock(mutex);
    const auto begin = clock.now();
    EXPECT_FALSE(clock.wait_for(condition, lock, 2ms, [] { return false; }));
    EXPECT_GE(clock.now() - begin, 2ms);
    EXPECT_FALSE(clock.wait_until(condition, lock, begin)) << "the time is over already";
    EXPECT_TRUE(clock.wait_until(condition, lock, begin, [] { return true; }));
    const auto before_sleep = clock.now();
    clock.sleep_for(2ms);
    EXPECT_GE(clock.now() - before_sleep, 2ms);
}

TEST(SystemClock, WaitsWithoutALimit) {
    Mutex mutex;
    Condition condition;
    bool over = false;
    ObservedThread waiter([&] {
        UniqueLock lock(mutex);
        TimeSource::system().wait(condition, lock, [&] { return over; });
    });
    EXPECT_TRUE(waiter.blocks());
    {
        const Lock lock(mutex);
        over = true;
    }
    condition.notify_one();
    waiter.join();
}

TEST(ManualClock, StandsStillUntilItIsAdvanced) {
    ManualClock clock;
    const auto begin = clock.now();
    EXPECT_EQ(clock.now(), begin);
    clock.advance(1h);
    EXPECT_EQ(clock.now(), begin + 1h);
}

TEST(ManualClock, AdvanceWakesThoseWhoseTimeIsOver) {
    ManualClock clock;
    Mutex mutex;
    Condition condition;
    std::atomic<int> over{0};
    const auto wait = [&](TimeSource::Duration timeout) {
        return std::thread([&, timeout] {
            UniqueLock lock(mutex);
            EXPECT_FALSE(clock.wait_for(condition, lock, timeout, [] { return false; }));
            ++over;
        });
    };
    std::thread early = wait(10ms), late = wait(20ms);
    ASSERT_TRUE(clock.wait_for_wait_until(10ms));
    ASSERT_TRUE(clock.wait_for_wait_until(20ms));
    clock.advance(9ms);
    ASSERT_TRUE(clock.wait_for_waiters(2));
    EXPECT_EQ(over, 0);
    clock.advance(1ms);
    early.join();
    ASSERT_TRUE(clock.wait_for_waiters(1));
    EXPECT_EQ(over, 1);
    clock.advance(1h);
    late.join();
}

TEST(ManualClock, NotificationEndsAWait) {
    ManualClock clock;
    Mutex mutex;
    Condition condition;
    bool ready = false;
    std::thread waiter([&] {
        UniqueLock lock(mutex);
        EXPECT_TRUE(clock.wait_for(condition, lock, 10ms, [&] { return ready; }));
        EXPECT_TRUE(clock.wait_for(condition, lock, 20ms, [&] { return !ready; }));
    });
    for (const bool value : {true, false}) {
        ASSERT_TRUE(clock.wait_for_wait_until(value ? 10ms : 20ms));
        {
            const Lock lock(mutex);
            ready = value;
        }
        condition.notify_all();
    }
    waiter.join();
}

// A thread may be about to wait when the time moves. If it missed the notification, this test would hang.
TEST(ManualClock, NoWaitIsMissed) {
    constexpr int kThreads = 3, kWaits = 50;
    ManualClock clock;
    std::atomic<int> left{kThreads};
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) {
        threads.emplace_back([&] {
            for (int wait = 0; wait < kWaits; ++wait) {
                clock.sleep_for(1ms);
            }
            --left;
        });
    }
    while (left != 0) {
        clock.advance(1ms);
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
}

// As above, but each advance is the last chance of the wait.
TEST(ManualClock, ThreadThatIsAboutToWaitIsWoken) {
    for (int i = 0; i < 50; ++i) {
        ManualClock clock;
        std::thread waiter([&] { clock.sleep_for(1ms); });
        ASSERT_TRUE(clock.wait_for_waiters(1));
        clock.advance(1ms);
        waiter.join();
    }
}

TEST(SleepingThreads, DifferFromThoseThatHaveReturned) {
    ObservedThread returned([] {});
    EXPECT_FALSE(returned.blocks());
    ManualClock clock;
    ObservedThread sleeps([&] { clock.sleep_for(1ms); });
    EXPECT_TRUE(sleeps.blocks());
    EXPECT_TRUE(wait_until_others_sleep());
    clock.advance(1ms);
    EXPECT_FALSE(sleeps.blocks());
}

TEST(SleepingThreads, AreAwaitedUntilNoneRuns) {
    std::atomic<int> steps{0};
    ManualClock clock;
    std::thread works([&] {
        while (steps < 50) {
            ++steps;
            std::this_thread::yield();
        }
        clock.sleep_for(1ms);
    });
    ASSERT_TRUE(wait_until_others_sleep());
    EXPECT_EQ(steps, 50);
    clock.advance(1ms);
    works.join();
}

}  // namespace
}  // namespace gpupool::test
