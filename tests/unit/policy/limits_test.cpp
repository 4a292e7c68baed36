// The texts and values of limits, and when they end a session.
#include "server/policy/limits.h"

#include <gtest/gtest.h>

#include <set>

namespace gpupool::policy {
namespace {

std::string round_trip(Limit limit, std::string_view text) {
    const auto value = parse_limit(limit, text);
    return value ? format_limit(limit, *value) : "error: " + value.error().message;
}

TEST(Limits, EveryKeyIsFoundByItsName) {
    std::set<std::string_view> keys;
    for (const LimitFacts& facts : all_limits()) {
        EXPECT_TRUE(keys.insert(facts.key).second) << facts.key;
        ASSERT_NE(find_limit(facts.key), nullptr);
        EXPECT_EQ(find_limit(facts.key)->limit, facts.limit);
    }
    EXPECT_EQ(find_limit("gpu"), nullptr);
    EXPECT_EQ(find_limit(""), nullptr);
}

TEST(Limits, TextsSurviveARoundTrip) {
    EXPECT_EQ(round_trip(Limit::memory, "8GiB,1=4097MiB"), "8GiB,1=4097MiB");
    EXPECT_EQ(round_trip(Limit::memory, "none"), "none");
    EXPECT_EQ(round_trip(Limit::total_memory, "5000000000"), "5000000000");
    EXPECT_EQ(round_trip(Limit::copy_bandwidth, "1.5GiB/s"), "1536MiB/s");
    EXPECT_EQ(round_trip(Limit::copy_bandwidth, "2GiB"), "2GiB/s");
    EXPECT_EQ(round_trip(Limit::gpus, "2"), "2");
    EXPECT_EQ(round_trip(Limit::sessions, "0"), "0");
    EXPECT_EQ(round_trip(Limit::session_class, "exclusive"), "exclusive");
    EXPECT_EQ(round_trip(Limit::priority, "100"), "100");
    EXPECT_EQ(round_trip(Limit::idle_time, "90m"), "90m");
    EXPECT_EQ(round_trip(Limit::life_time, "1500ms"), "1500ms");
    EXPECT_EQ(round_trip(Limit::pinned_memory, "0"), "0");
}

TEST(Limits, ImpossibleValuesSayWhatIsAccepted) {
    EXPECT_EQ(round_trip(Limit::gpus, "0"), "error: must be a whole number from 1 to 1000000000, or \"none\", not '0'");
    EXPECT_EQ(round_trip(Limit::priority, "101"),
              "error: must be a whole number from 0 to 100, or \"none\", not '101'");
    EXPECT_EQ(round_trip(Limit::memory, "1MiB"), "error: must be 2MiB or more, or \"none\", not '1MiB'");
    EXPECT_EQ(round_trip(Limit::idle_time, "10ms"), "error: must be from 1 s to 366 days, or \"none\", not '10ms'");
    EXPECT_EQ(round_trip(Limit::session_class, "none"), "error: 'none' is not a class: say shared or exclusive");
    for (const LimitFacts& facts : all_limits()) {
        for (const char* text : {"", "x", "-1", "1e400", "99999999999999999999999", "8GiB,", "\xff"}) {
            EXPECT_FALSE(parse_limit(facts.limit, text)) << facts.key << " " << text;
        }
    }
}

TEST(Limits, WhatIsNotSetHasNoLimit) {
    const Effective all = effective(Limits());
    EXPECT_FALSE(all.memory.any());
    EXPECT_EQ(all.gpus, kNoLimit);
    EXPECT_EQ(all.session_class, SessionClass::shared);
    EXPECT_EQ(all.priority, 50U);
}

TEST(Limits, ADefaultIsNeverAboveItsLimit) {
    Limits limits;
    limits.set(Limit::gpus, {2, {}});
    limits.set(Limit::default_gpus, {4, {}});
    EXPECT_EQ(effective(limits).default_gpus, 2U);
}

TEST(Limits, TimesEndASession) {
    Effective limits;
    EXPECT_EQ(end_reason(limits, 0, 0, INT64_MAX), std::nullopt);
    limits.idle_time_ms = 60'000;
    limits.life_time_ms = 3'600'000;
    EXPECT_EQ(end_reason(limits, 1000, 5000, 64'999), std::nullopt);
    EXPECT_EQ(end_reason(limits, 1000, 5000, 65'000), "the session has been idle for 1m (idle_time)");
    EXPECT_EQ(end_reason(limits, 1000, 3'600'999, 3'601'000),
              "the session has reached its life time of 1h (life_time)");
}

}  // namespace
}  // namespace gpupool::policy
