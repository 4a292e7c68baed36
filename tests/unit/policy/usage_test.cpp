// Counting what tenants use.
#include "server/policy/usage.h"

#include <gtest/gtest.h>

namespace gpupool::policy {
namespace {

constexpr std::int64_t kDayMs = 86'400'000;
constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

// Both clocks; the wall clock began `unix_ms` after the steady one.
Moment at(std::int64_t steady_ms, std::int64_t unix_ms = 20'000 * kDayMs) {
    return {steady_ms, steady_ms + unix_ms};
}

TEST(Usage, CountsGpusMemoryCopiesAndSessions) {
    UsageMeter meter;
    meter.start_session("s1", "alice", at(0));
    meter.set_gpus("alice", 2, at(0));
    meter.set_memory("s1", kGiB, at(1000));
    meter.set_copied("s1", 10, 5, at(1500));
    meter.set_copied("s1", 30, 5, at(2000));
    meter.end_session("s1", at(3000));
    meter.set_gpus("alice", 0, at(3000));
    const auto rows = meter.take(at(9000));
    ASSERT_EQ(rows.size(), 1U);
    EXPECT_EQ(rows[0], (UsageRow{20'000, "alice", {1, 6000, 2 * kGiB, 30, 5}}));
    EXPECT_TRUE(meter.take(at(10'000)).empty());
}

TEST(Usage, DividesAtMidnight) {
    UsageMeter meter;
    const std::int64_t wall = 20'000 * kDayMs - 1000;
    meter.start_session("s1", "alice", at(0, wall));
    meter.set_gpus("alice", 1, at(0, wall));
    meter.set_memory("s1", 8, at(0, wall));
    const auto rows = meter.take(at(kDayMs + 3000, wall));
    ASSERT_EQ(rows.size(), 3U);
    EXPECT_EQ(rows[0], (UsageRow{19'999, "alice", {1, 1000, 8, 0, 0}}));
    EXPECT_EQ(rows[1], (UsageRow{20'000, "alice", {0, 86'400'000, 8 * 86'400, 0, 0}}));
    EXPECT_EQ(rows[2], (UsageRow{20'001, "alice", {0, 2000, 16, 0, 0}}));
}

TEST(Usage, FractionsOfASecondAddUp) {
    UsageMeter meter;
    meter.start_session("s1", "alice", at(0));
    meter.set_memory("s1", 1, at(0));
    std::uint64_t seconds = 0;
    for (std::int64_t ms = 1; ms <= 10'000; ++ms) {
        for (const UsageRow& row : meter.take(at(ms))) {
            seconds += row.amounts.byte_seconds;
        }
    }
    EXPECT_EQ(seconds, 10U);
}

TEST(Usage, LargeServersDoNotOverflow) {
    UsageMeter meter;
    meter.start_session("s1", "alice", at(0, 0));
    meter.set_memory("s1", 2048 * kGiB, at(0, 0));
    const auto rows = meter.take(at(kDayMs, 0));
    ASSERT_EQ(rows.size(), 1U);
    EXPECT_EQ(rows[0].amounts.byte_seconds, 2048 * kGiB * 86'400);
}

TEST(Usage, AnAdoptedSessionCountsFromNowOn) {
    UsageMeter meter;
    meter.adopt_session("s1", "alice", 1000, 500, at(0));
    meter.set_copied("s1", 1200, 400, at(10));  // less than before: not copied back
    const auto rows = meter.take(at(10));
    ASSERT_EQ(rows.size(), 1U);
    EXPECT_EQ(rows[0].amounts, (UsageAmounts{0, 0, 0, 200, 0}));
}

TEST(Usage, RowsThatWereNotStoredComeAgain) {
    UsageMeter meter;
    meter.start_session("s1", "alice", at(0));
    const auto rows = meter.take(at(0));
    meter.give_back(rows);
    EXPECT_EQ(meter.take(at(0)), rows);
}

TEST(Usage, AClockThatGoesBackCountsNothing) {
    UsageMeter meter;
    meter.start_session("s1", "alice", at(5000));
    meter.set_gpus("alice", 1, at(5000));
    EXPECT_EQ(meter.take(at(1000)).size(), 1U);  // the session's start
    EXPECT_EQ(meter.take(at(6000)).at(0).amounts.gpu_ms, 1000U);
}

TEST(Usage, DaysAreWrittenAsDates) {
    EXPECT_EQ(day_text(0), "1970-01-01");
    EXPECT_EQ(day_text(20'000), "2024-10-04");
}

TEST(Usage, TotalsGoOnOverFlushesAndTheEndOfSessions) {
    UsageMeter meter;
    meter.start_session("s1", "alice", at(0), 2);
    meter.set_gpus("alice", 2, at(0));
    meter.set_memory("s1", kGiB, at(0));
    meter.set_copied("s1", 10, 5, at(500));
    const UsageAmounts half{1, 1000, kGiB / 2, 10, 5};
    EXPECT_EQ(meter.totals(at(500)).at("alice"), half);
    EXPECT_EQ(meter.of_session("s1", at(500)), (UsageAmounts{0, 1000, kGiB / 2, 10, 5}));
    const auto rows = meter.take(at(600));
    meter.give_back(rows);
    meter.take(at(700));
    EXPECT_EQ(meter.totals(at(1000)).at("alice"), (UsageAmounts{1, 2000, kGiB, 10, 5}));
    EXPECT_EQ(meter.of_session("s1", at(900)).gpu_ms, 1800U);
    EXPECT_EQ(meter.of_session("s1", at(800)).gpu_ms, 1800U) << "never less than at an earlier call";
    meter.end_session("s1", at(2000));
    meter.set_gpus("alice", 0, at(2000));
    EXPECT_EQ(meter.totals(at(9000)).at("alice"), (UsageAmounts{1, 4000, 2 * kGiB, 10, 5}));
    EXPECT_FALSE(meter.of_session("s1", at(9000)).any());
}

TEST(Usage, TotalsAreBounded) {
    UsageMeter meter;
    for (std::size_t i = 0; i < UsageMeter::kMaxTotals + 7; ++i) {
        meter.start_session("s" + std::to_string(i), "t" + std::to_string(i), at(0));
        meter.end_session("s" + std::to_string(i), at(0));
    }
    const auto& totals = meter.totals(at(0));
    EXPECT_EQ(totals.size(), UsageMeter::kMaxTotals + 1);
    EXPECT_EQ(totals.at(UsageMeter::kOtherTenants).sessions, 7U);
}

}  // namespace
}  // namespace gpupool::policy
