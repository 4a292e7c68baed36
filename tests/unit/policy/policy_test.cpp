// Reading the policy from a configuration file, and live changes above it.
#include "server/policy/policy.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdio>
#include <fstream>

namespace gpupool::policy {
namespace {

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

Policy good(std::string_view text) {
    auto policy = Policy::parse(text, "gpupoold.toml");
    EXPECT_TRUE(policy) << (policy ? "" : policy.error().message);
    return policy ? std::move(*policy) : Policy();
}

std::string problem(std::string_view text) {
    const auto policy = Policy::parse(text, "gpupoold.toml");
    return policy ? "none" : policy.error().message;
}

std::string shown(const Policy& policy, const std::string& tenant, Limit limit) {
    for (const ShownLimit& each : policy.show(tenant)) {
        if (each.limit == limit) {
            return format_limit(limit, each.value) + " (" + each.origin + ")";
        }
    }
    return "missing";
}

TEST(PolicyFile, NothingMeansNoLimits) {
    const Policy policy = good("");
    EXPECT_EQ(policy.limits("alice").gpus, kNoLimit);
    EXPECT_EQ(policy.limits("alice").session_class, SessionClass::shared);
    EXPECT_EQ(policy.rules().placement, Placement::spread);
    EXPECT_EQ(policy.rules().overcommit, 1.0);
    EXPECT_TRUE(policy.tokens().empty());
}

TEST(PolicyFile, ATenantsTableIsAboveThatOfAll) {
    const Policy policy = good(R"(
[limits]
sessions = 16
session_memory = "20GiB"

[placement]
policy = "pack"
overcommit = 1.5
queue_length = 10
queue_time = "5m"

[tenants]
gpus = 1
idle_time = "2h"

[tenant.alice]
gpus = 4
default_gpus = 1
memory = "40GiB,1=8GiB"
class = "exclusive"
idle_time = "none"
)");
    EXPECT_EQ(policy.rules().placement, Placement::pack);
    EXPECT_EQ(policy.rules().overcommit, 1.5);
    EXPECT_EQ(policy.rules().queue_length, 10U);
    EXPECT_EQ(policy.rules().queue_time, std::chrono::minutes(5));
    EXPECT_EQ(policy.rules().sessions, 16U);
    EXPECT_EQ(policy.limits("bob").gpus, 1U);
    EXPECT_EQ(policy.limits("bob").memory.bytes(0), 20 * kGiB);
    EXPECT_EQ(policy.limits("alice").gpus, 4U);
    EXPECT_EQ(policy.limits("alice").default_gpus, 1U);
    EXPECT_EQ(policy.limits("alice").memory.bytes(0), 40 * kGiB);
    EXPECT_EQ(policy.limits("alice").memory.bytes(1), 8 * kGiB);
    EXPECT_EQ(policy.limits("alice").session_class, SessionClass::exclusive);
    EXPECT_EQ(policy.limits("alice").idle_time_ms, kNoLimit);
    EXPECT_EQ(policy.tenants(), std::vector<std::string>{"alice"});
    EXPECT_EQ(shown(policy, "alice", Limit::gpus), "4 (gpupoold.toml:17)");
    EXPECT_EQ(shown(policy, "bob", Limit::memory), "20GiB (gpupoold.toml:4)");
    EXPECT_EQ(shown(policy, "bob", Limit::priority), "50 (built in)");
}

TEST(PolicyFile, MistakesNameFileLineAndKey) {
    EXPECT_EQ(problem("[tenants]\ngpus = 0"),
              "gpupoold.toml:2: tenants.gpus: must be a whole number from 1 to 1000000000, or \"none\", not '0'");
    EXPECT_EQ(problem("\n\n[tenant.alice]\ngpu = 2"), "gpupoold.toml:4: there is no setting tenant.alice.gpu");
    EXPECT_EQ(problem("[tenant.alice]\nmemory = \"1MiB\""),
              "gpupoold.toml:2: tenant.alice.memory: must be 2MiB or more, or \"none\", not '1MiB'");
    EXPECT_EQ(problem("[tenant.alice]\nmemory = true"),
              "gpupoold.toml:2: tenant.alice.memory: must be a string or a whole number");
    EXPECT_EQ(problem("[tenants]\nclass = \"mine\""),
              "gpupoold.toml:2: tenants.class: 'mine' is not a class: say shared or exclusive");
    EXPECT_EQ(problem("[placement]\npolicy = \"best\""),
              "gpupoold.toml:2: placement.policy: must be \"pack\" or \"spread\"");
    EXPECT_EQ(problem("[placement]\novercommit = 0.5"),
              "gpupoold.toml:2: placement.overcommit: must be a number from 1 to 100");
    EXPECT_EQ(problem("[placement]\novercommit = nan"),
              "gpupoold.toml:2: placement.overcommit: must be a number from 1 to 100");
    EXPECT_EQ(problem("[placement]\nqueue = 1"), "gpupoold.toml:2: there is no setting placement.queue");
    EXPECT_EQ(problem("[placement]\nqueue_time = \"25h\""),
              "gpupoold.toml:2: placement.queue_time: must be at most 24h");
    EXPECT_EQ(problem("tenants = 1"), "gpupoold.toml:1: tenants: must be a table");
    EXPECT_EQ(problem("[tenant]\nalice = 1"), "gpupoold.toml:2: tenant.alice: must be a table: [tenant.alice]");
    EXPECT_TRUE(problem("[tenant.Alice]").starts_with("gpupoold.toml:1: tenant.Alice: a name must consist of"));
    EXPECT_EQ(problem("[tenant.alice]\ngpus = 2\ndefault_gpus = 3"),
              "gpupoold.toml:3: tenant.alice.default_gpus: must be at most gpus, 2");
    EXPECT_EQ(problem("[tenants]\nmemory = \"8GiB,1=2GiB\"\ndefault_memory = \"4GiB\""),
              "gpupoold.toml:3: tenants.default_memory: must be at most memory, 2GiB");
    EXPECT_TRUE(problem("[tenants\n").starts_with("gpupoold.toml:1: "));
}

TEST(PolicyFile, TokensAreOfTheirTenants) {
    const Policy policy = good(R"(
[auth]
tokens = ["a-plain-token"]
administrator_hashes = ["ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"]
[tenant.alice]
token_hashes = ["6ca13d52ca70c883e0f0bb101e425a89e8624de51db2d2392593af6a84118090"]
)");
    const TokenTable table(policy.tokens(), false);
    EXPECT_EQ(table.identify("abc", 0), (Identity{Role::administrator, "administrator"}));
    EXPECT_EQ(table.identify("abc123", 0), (Identity{Role::tenant, "alice"}));
    const auto plain = table.identify("a-plain-token", 0);
    ASSERT_TRUE(plain);
    EXPECT_EQ(plain->role, Role::tenant);
    EXPECT_EQ(plain->name.size(), 32U);
    EXPECT_TRUE(check_name(plain->name));
}

TEST(PolicyFile, MistakesInTokensAreNamed) {
    EXPECT_EQ(problem("[auth]\ntokens = [\"short\"]"),
              "gpupoold.toml:2: auth.tokens: a token must have 8 to 4096 characters");
    EXPECT_EQ(problem("[auth]\ntokens = 5"), "gpupoold.toml:2: auth.tokens: must be a list of strings");
    EXPECT_TRUE(problem("[tenant.a]\ntoken_hashes = [\"12\"]")
                    .starts_with("gpupoold.toml:2: tenant.a.token_hashes: a token's hash must be"));
    const std::string hash(64, 'a');
    EXPECT_EQ(problem("[tenant.a]\ntoken_hashes = [\"" + hash + "\"]\n[tenant.b]\ntoken_hashes = [\"" + hash + "\"]"),
              "gpupoold.toml:4: tenant.b.token_hashes: the same token belongs to a already");
}

TEST(PolicyFile, TheTokenFileIsReadAndTheOptionReplacesIt) {
    const std::string one = testing::TempDir() + "/tokens-one", other = testing::TempDir() + "/tokens-other";
    std::ofstream(one) << "# comment\n\ntoken-number-one  \n";
    std::ofstream(other) << "token-number-two\n";
    ::chmod(one.c_str(), 0600);
    ::chmod(other.c_str(), 0600);
    const std::string text = "[auth]\ntoken_file = \"" + one + "\"";
    EXPECT_TRUE(TokenTable(good(text).tokens(), false).identify("token-number-one", 0));
    const auto replaced = Policy::parse(text, "f", other);
    ASSERT_TRUE(replaced);
    EXPECT_FALSE(TokenTable(replaced->tokens(), false).identify("token-number-one", 0));
    EXPECT_TRUE(TokenTable(replaced->tokens(), false).identify("token-number-two", 0));
    std::ofstream(one) << "short\n";
    EXPECT_EQ(problem(text), "gpupoold.toml:2: auth.token_file: " + one + ":1: a token must have 8 to 4096 characters");
    std::ofstream(one) << "# nothing\n";
    EXPECT_NE(problem(text).find("contains no token"), std::string::npos);
    std::remove(one.c_str());
    EXPECT_NE(problem(text).find("cannot read the token file"), std::string::npos);
    std::remove(other.c_str());
}

TEST(PolicyFile, IsLoadedOrMissing) {
    EXPECT_TRUE(Policy::load(""));
    EXPECT_FALSE(Policy::load(testing::TempDir() + "/no-such-file.toml"));
    EXPECT_TRUE(Policy::owns("tenant"));
    EXPECT_TRUE(Policy::owns("tenants"));
    EXPECT_TRUE(Policy::owns("placement"));
    EXPECT_FALSE(Policy::owns("limits"));
}

TEST(PolicyChanges, WinOverTheFileUntilUnset) {
    const Policy file = good("[tenants]\ngpus = 1\nhandles = 1000\n[tenant.alice]\ngpus = 2");
    const Policy changed = file.with({{{Scope::Kind::everyone, {}}, {{"gpus", "8"}, {"handles", "2000"}}},
                                      {{Scope::Kind::tenant, "alice"}, {{"memory", "4GiB"}}},
                                      {{Scope::Kind::session, "s1"}, {{"handles", "500"}}}});
    EXPECT_EQ(changed.limits("bob").gpus, 8U);
    EXPECT_EQ(changed.limits("alice").gpus, 2U);  // the file's table of the tenant is more special
    EXPECT_EQ(changed.limits("alice").memory.bytes(3), 4 * kGiB);
    EXPECT_EQ(changed.limits("alice").handles, 2000U);
    EXPECT_EQ(changed.limits("alice", "s1").handles, 500U);
    EXPECT_EQ(changed.limits("alice", "s2").handles, 2000U);
    EXPECT_EQ(shown(changed, "alice", Limit::memory), "4GiB (set live for the tenant)");
    EXPECT_EQ(changed.with({}).limits("bob").gpus, 1U);
    EXPECT_EQ(file.limits("bob").gpus, 1U);
}

TEST(PolicyChanges, ThatCannotBeUsedAreNamed) {
    std::vector<std::string> unusable;
    const Policy changed = good("").with(
        {{{Scope::Kind::tenant, "alice"}, {{"gpus", "2"}, {"colour", "red"}, {"memory", "lots"}}}}, &unusable);
    EXPECT_EQ(changed.limits("alice").gpus, 2U);
    ASSERT_EQ(unusable.size(), 2U);
    EXPECT_TRUE(unusable[0].starts_with("colour=red (set live for the tenant)")) << unusable[0];
}

TEST(PolicyChanges, AreCheckedBeforeTheyAreKept) {
    EXPECT_EQ(*check_override("memory", "1024MiB"), "1GiB");
    EXPECT_EQ(check_override("gpus", "x").error().message,
              "gpus: must be a whole number from 1 to 1000000000, or \"none\", not 'x'");
    EXPECT_TRUE(check_override("colour", "red").error().message.starts_with("there is no limit colour; known are mem"));
}

TEST(Policy, DevicesThatDoNotExistAreNamed) {
    const Policy policy = good("[tenant.alice]\nmemory = \"8GiB,2=4GiB\"");
    EXPECT_TRUE(policy.check_devices(3));
    const Status two = policy.check_devices(2);
    ASSERT_FALSE(two);
    EXPECT_EQ(two.error().message, "gpupoold.toml:2: memory: there is no device 2: the server has 2");
    EXPECT_FALSE(policy.with({{{Scope::Kind::everyone, {}}, {{"default_memory", "7=4GiB"}}}}).check_devices(3));
}

}  // namespace
}  // namespace gpupool::policy
