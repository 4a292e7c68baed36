// What the commands of administration print.
#include "client/cli/administration_format.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "client/cli/administration_requests.h"

namespace gpupool::cli {
namespace {

constexpr std::int64_t kDayMs = 86'400'000;

TEST(AdministrationFormat, ANewTokenIsPrintedAlone) {
    EXPECT_EQ(answer_text(messages::NewToken{"alice", 3, "gpt-abc"}), "gpt-abc\n");
}

TEST(AdministrationFormat, TenantsAreATable) {
    const messages::TenantList tenants{
        {{"alice", false, kDayMs, {{1, "0a1b2c3d", 0, 0}, {2, "ffffffff", 0, 20'000 * kDayMs}}, 2, 3, 1u << 30, true},
         {"bob", false, 0, {}, 0, 0, 0, true},
         {"ops", true, kDayMs, {}, 0, 0, 0, false}}};
    EXPECT_EQ(
        answer_text(tenants),
        "NAME                              ROLE           SESSIONS  GPUS    PROMISED  TOKENS\n"
        "alice                             tenant                2     3       1 GiB  1:0a1b2c3d, 2:ffffffff until "
        "2024-10-04\n"
        "bob                               tenant                0     0         0 B  in the file\n"
        "ops                               administrator         0     0         0 B  none\n");
    const auto json = nlohmann::json::parse(answer_json(tenants));
    EXPECT_EQ(json["tenants"][0]["tokens"][1]["ends_unix_ms"], 20'000 * kDayMs);
    EXPECT_FALSE(json["tenants"][1].contains("added_unix_ms"));
}

TEST(AdministrationFormat, LimitsSayWhereTheyWereSet) {
    const messages::LimitList limits{{{"gpus", "2", "gpupoold.toml:7"}}};
    EXPECT_EQ(answer_text(limits),
              "LIMIT             VALUE                     SET BY\n"
              "gpus              2                         gpupoold.toml:7\n");
    EXPECT_EQ(nlohmann::json::parse(answer_json(limits))["limits"]["gpus"]["value"], "2");
}

TEST(AdministrationFormat, UsageIsByDayAndTenant) {
    const messages::UsageList usage{{{20'000, "alice", 4, 5'400'000, std::uint64_t{7200} << 30, 1u << 20, 0}}};
    EXPECT_EQ(
        answer_text(usage),
        "DAY         TENANT                            SESSIONS      GPU TIME      GiB x TIME   COPIED IN  COPIED OUT\n"
        "2024-10-04  alice                                    4        1.50 h          2.00 h       1 MiB         0 "
        "B\n");
    EXPECT_EQ(nlohmann::json::parse(answer_json(usage))["usage"][0]["gpu_seconds"], 5400.0);
    EXPECT_TRUE(answer_text(messages::UsageList{}).ends_with("none\n"));
}

TEST(AdministrationFormat, DaysAreRead) {
    EXPECT_EQ(*parse_day("2024-10-04"), 20'000);
    EXPECT_EQ(format_day(20'000), "2024-10-04");
    for (const char* bad : {"", "2024-13-01", "2024-02-30", "24-10-04", "2024/10/04", "2024-10-0x"}) {
        EXPECT_FALSE(parse_day(bad)) << bad;
    }
    EXPECT_FALSE(format_day(INT64_MAX).empty());
    EXPECT_FALSE(format_day(INT64_MIN).empty());
}

TEST(AdministrationFormat, ChangesAreKeysAndValues) {
    EXPECT_EQ(*parse_change("memory=8GiB,1=4GiB"), (messages::LimitText{"memory", "8GiB,1=4GiB", ""}));
    for (const char* bad : {"", "gpus", "=2", "gpus="}) {
        EXPECT_FALSE(parse_change(bad)) << bad;
    }
}

}  // namespace
}  // namespace gpupool::cli
