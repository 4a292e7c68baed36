// Tests StockPlan alone: which workers the stock should have.

#include "server/daemon/stock.h"

#include <gtest/gtest.h>

namespace gpupool::test {
namespace {

using daemon::DriverEnvironment;
using daemon::StockPlan;
using Clock = StockPlan::Clock;

const DriverEnvironment kDefault, kFirst{{"CUDA_VISIBLE_DEVICES", "0"}}, kSecond{{"CUDA_VISIBLE_DEVICES", "1"}};

TEST(StockPlan, BeginsWithTheDefaultEnvironment) {
    const StockPlan plan(2);
    const auto changes = plan.changes({});
    EXPECT_EQ(changes.start, (std::vector<DriverEnvironment>{kDefault, kDefault}));
    EXPECT_TRUE(changes.end.empty());
    const auto lacking_one = plan.changes({&kDefault});
    EXPECT_EQ(lacking_one.start.size(), 1u);
    EXPECT_TRUE(plan.changes({&kDefault, &kDefault}).start.empty());
}

TEST(StockPlan, SizeZeroStartsNoWorkers) {
    StockPlan plan(0);
    plan.note_session(kFirst);
    EXPECT_TRUE(plan.changes({}).start.empty());
    EXPECT_EQ(plan.changes({&kDefault}).end, std::vector<std::size_t>{0});
}

TEST(StockPlan, PrefersRecentEnvironments) {
    StockPlan plan(2);
    plan.note_session(kFirst);
    const auto mixed = plan.changes({&kDefault, &kDefault});
    EXPECT_EQ(mixed.start, std::vector<DriverEnvironment>{kFirst});
    EXPECT_EQ(mixed.end, std::vector<std::size_t>{1});
    plan.note_session(kSecond);
    const auto both = plan.changes({&kDefault, &kFirst});
    EXPECT_EQ(both.start, std::vector<DriverEnvironment>{kSecond}) << "the default was used least recently";
    EXPECT_EQ(both.end, std::vector<std::size_t>{0});
    plan.note_session(kFirst);
    EXPECT_TRUE(plan.changes({&kSecond, &kFirst}).start.empty());
    EXPECT_TRUE(plan.changes({&kSecond, &kFirst}).end.empty());
}

TEST(StockPlan, DelaysStartsWhileASessionBegins) {
    StockPlan plan(1);
    EXPECT_LE(plan.start_after(), Clock::now());
    plan.note_session(kDefault);
    const auto begin = plan.start_after();
    EXPECT_GT(begin, Clock::now());
    EXPECT_LE(begin, Clock::now() + std::chrono::seconds(1));
    plan.note_session(kDefault);
    EXPECT_EQ(plan.start_after(), begin) << "a further session does not extend the delay";
}

TEST(StockPlan, RetriesFailuresWithGrowingPauses) {
    StockPlan plan(1);
    Clock::duration last{};
    for (int i = 0; i < 5; ++i) {
        plan.note_failure(kDefault, false);
        const auto pause = plan.start_after() - Clock::now();
        EXPECT_GT(pause, last);
        last = pause;
    }
    for (int i = 0; i < 50; ++i) {
        plan.note_failure(kDefault, false);
    }
    EXPECT_LE(plan.start_after() - Clock::now(), std::chrono::minutes(2));
}

TEST(StockPlan, DropsAnEnvironmentWithoutADevice) {
    StockPlan plan(1);
    plan.note_session(kFirst);
    plan.note_failure(kFirst, false);
    EXPECT_EQ(plan.changes({}).start, std::vector<DriverEnvironment>{kDefault});
    plan.note_session(kSecond);
    plan.note_failure(kSecond, true);
    EXPECT_EQ(plan.changes({}).start, std::vector<DriverEnvironment>{kSecond}) << "that environment had worked before";
}

}  // namespace
}  // namespace gpupool::test
