// Tenants: tokens, limits, placement, the queue, usage and the audit log, with the real commands and real sessions.

#include "tests/e2e/sessions/tenants.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>

namespace gpupool::test {
namespace {

using Tenants = TenantsTest;

TEST_F(Tenants, GetWhatTheirLimitsSay) {
    start("[tenants]\nmemory = \"64MiB\"\n[tenant.bob]\nmemory = \"32MiB\"\n");
    const std::string alice = add("alice"), bob = add("bob");
    EXPECT_TRUE(run(alice, "quota_shown", 64 * kMiB)->succeeds());
    EXPECT_TRUE(run(bob, "quota_shown", 32 * kMiB)->succeeds());
    EXPECT_TRUE(run(bob, "quota_shown", 16 * kMiB, {"GPUPOOL_MEMORY=16MiB"})->succeeds()) << "a client asks for less";
    EXPECT_NE(run("no-token-of-this-server", "quota_shown", 0)->wait(), 0);
    output({"tenant", "set", "alice", "memory=48MiB"});
    EXPECT_TRUE(run(alice, "quota_shown", 48 * kMiB)->succeeds()) << "changed while the server runs";
    const ProcessEnd wrong = command({"tenant", "set", "alice", "memory=much"});
    EXPECT_NE(WEXITSTATUS(wrong.status), 0);
    EXPECT_NE(wrong.errors.find("memory"), std::string::npos) << wrong.errors;
}

TEST_F(Tenants, TokensAreRotatedAndRevokedAndKeptOverARestart) {
    start("");
    const std::string first = add("alice");
    std::string second = output({"tenant", "rotate", "alice"});
    second.erase(second.find_last_not_of('\n') + 1);
    EXPECT_NE(run(first, "quota_shown", 0)->wait(), 0) << "the first token has ended";
    hold(second)->end_input();
    std::ifstream file(state_.path() + "/gpupool.db", std::ios::binary);
    std::stringstream kept;
    kept << file.rdbuf();
    EXPECT_EQ(kept.str().find(second), std::string::npos) << "only the token's hash is kept";
    daemon_->signal(SIGTERM);
    ASSERT_TRUE(daemon_->wait_for_end(milliseconds(20000)));
    daemon_->start();
    hold(second)->end_input();
    output({"tenant", "revoke", "alice"});
    EXPECT_NE(run(second, "quota_shown", 0)->wait(), 0) << "it was revoked";
}

TEST_F(Tenants, SeeOnlyWhatIsTheirOwn) {
    start("");
    const std::string alice = add("alice"), bob = add("bob");
    const auto first = hold(alice), second = hold(bob);
    const auto all = status(), own = status(alice);
    EXPECT_EQ(all["sessions"].size(), 2u);
    ASSERT_EQ(own["sessions"].size(), 1u);
    EXPECT_EQ(own["sessions"][0]["tenant"], "alice");
    EXPECT_EQ(own.dump().find("bob"), std::string::npos);
    EXPECT_LT(own["devices"][0]["memory_used_bytes"], all["devices"][0]["memory_used_bytes"]);
    const std::string session = all["sessions"][0]["id"];
    for (const std::vector<std::string>& refused : {std::vector<std::string>{"tenant", "list"},
                                                    {"tenant", "add", "eve"},
                                                    {"session", "kill", session},
                                                    {"tenant", "set", "alice", "memory=1GiB"},
                                                    {"usage", "--tenant", "bob"},
                                                    {"tenant", "show", "bob"}}) {
        const ProcessEnd end = command(refused, alice);
        EXPECT_NE(WEXITSTATUS(end.status), 0) << refused[0] << " " << refused[1] << ": " << end.output;
    }
    EXPECT_EQ(status()["sessions"].size(), 2u);
}

TEST_F(Tenants, ExclusiveSessionsGetAGpuEachAndTheQueueMoves) {
    start("[tenants]\nclass = \"exclusive\"\n", {"GPUPOOL_SOFTGPU_DEVICES=2", "GPUPOOL_SOFTGPU_MEMORY=256M"});
    const std::string alice = add("alice");
    const std::vector<std::string> one{"GPUPOOL_GPUS=1", "GPUPOOL_CLASS=exclusive", "GPUPOOL_WAIT_WHEN_FULL=120s"};
    const auto first = hold(alice, one), second = hold(alice, one);
    const auto shown = status();
    ASSERT_EQ(shown["sessions"].size(), 2u);
    EXPECT_NE(shown["sessions"][0]["devices"][0]["device"], shown["sessions"][1]["devices"][0]["device"]);
    EXPECT_EQ(shown["devices"][1]["class"], "exclusive");
    const auto third = run(alice, "quota_hold", 0, one, kMiB);
    ASSERT_TRUE(eventually([&] { return status()["queue"].size() == 1; }));
    EXPECT_EQ(status()["queue"][0]["position"], 1);
    first->end_input();
    EXPECT_TRUE(first->succeeds());
    EXPECT_TRUE(third->says("ready")) << third->errors();
    EXPECT_TRUE(status()["queue"].empty());
}

TEST_F(Tenants, AnAdministratorEndsASession) {
    start("");
    const auto program = hold(add("alice"));
    const std::string session = status()["sessions"][0]["id"];
    output({"session", "kill", session});
    EXPECT_TRUE(eventually([&] { return status()["sessions"].empty(); }));
    EXPECT_NE(command({"session", "kill", session}).status, 0) << "there is none";
}

TEST_F(Tenants, PolicyIsReadAgainWithoutDroppingASession) {
    start("[tenants]\nmemory = \"64MiB\"\n");
    const std::string alice = add("alice");
    const auto program = hold(alice);
    const std::string path = daemon_->folder().path() + "/gpupoold.toml";
    std::ifstream in(path);
    std::stringstream text;
    text << in.rdbuf();
    std::string changed = text.str();
    ASSERT_NE(changed.find("64MiB"), std::string::npos) << changed;
    changed.replace(changed.find("64MiB"), 5, "32MiB");
    std::ofstream(path) << changed;
    daemon_->signal(SIGHUP);
    ASSERT_TRUE(eventually([&] { return daemon_->log().find("the policy was read again") != std::string::npos; }));
    EXPECT_TRUE(run(alice, "quota_shown", 32 * kMiB)->succeeds());
    std::ofstream(path) << changed << "\n[placement]\npolicy = \"sideways\"\n";
    daemon_->signal(SIGHUP);
    ASSERT_TRUE(eventually([&] { return daemon_->log().find("the policy stays as it is") != std::string::npos; }));
    EXPECT_TRUE(run(alice, "quota_shown", 32 * kMiB)->succeeds());
    program->end_input();
    EXPECT_TRUE(program->succeeds());
}

// Also what a session copies just before it ends, and by way of memory that it shares with its worker.
TEST_F(Tenants, UsageHasEveryCopiedByte) {
    start("");
    constexpr std::uint64_t kPageable = 20 * (256u << 10), kPinned = 12 * kMiB;
    const std::vector<std::pair<std::string, std::uint64_t>> expected{{"limit_check", kPageable},
                                                                      {"limit_copy_pinned", kPinned}};
    for (const auto& [mode, bytes] : expected) {
        const std::string tenant = mode == "limit_check" ? "alice" : "bob";
        EXPECT_TRUE(run(add(tenant), mode, 0)->succeeds());
        ASSERT_TRUE(eventually([&] { return status()["sessions"].empty(); }));
        const auto usage = nlohmann::json::parse(output({"usage", "--json", "--tenant", tenant}));
        ASSERT_EQ(usage["usage"].size(), 1u) << usage;
        EXPECT_EQ(usage["usage"][0]["bytes_in"], bytes) << mode;
        EXPECT_EQ(usage["usage"][0]["bytes_out"], bytes) << mode;
    }
}

TEST_F(Tenants, UsageAndTheAuditLogAddUpOverARestart) {
    start("");
    const std::string alice = add("alice");
    for (int round = 1; round <= 2; ++round) {
        const auto program = hold(alice);
        program->end_input();
        EXPECT_TRUE(program->succeeds());
        ASSERT_TRUE(eventually([&] { return status()["sessions"].empty(); }));
        const auto usage = nlohmann::json::parse(output({"usage", "--json"}));
        const std::string text = usage.dump();
        EXPECT_NE(text.find("alice"), std::string::npos) << text;
        EXPECT_NE(text.find("\"sessions\":" + std::to_string(round)), std::string::npos) << text;
        daemon_->signal(SIGTERM);
        ASSERT_TRUE(daemon_->wait_for_end(milliseconds(20000)));
        daemon_->start();
    }
    std::ifstream log(state_.path() + "/audit.log");
    std::size_t admitted = 0, ended = 0;
    for (std::string line; std::getline(log, line);) {
        const auto record = nlohmann::json::parse(line);
        admitted += record["event"] == "admitted" ? 1 : 0;
        ended += record["event"] == "ended" ? 1 : 0;
    }
    EXPECT_EQ(admitted, 2u);
    EXPECT_EQ(ended, 2u);
}

// A worker reports once a second, and a short session ends before.
TEST_F(Tenants, UsageHasWhatShortSessionsCopied) {
    start("");
    constexpr std::uint64_t kSessions = 10, kInBytes = 400'000, kOutBytes = 200'000;  // of vector_add
    for (std::uint64_t i = 0; i < kSessions; ++i) {
        EXPECT_TRUE(Program(*daemon_, {std::string(TEST_PROGRAMS) + "/vector_add"}).succeeds());
    }
    ASSERT_TRUE(eventually([&] { return status()["sessions"].empty(); }));
    std::uint64_t in = 0, out = 0;
    const auto usage = nlohmann::json::parse(output({"usage", "--json"}));
    for (const auto& row : usage["usage"]) {
        in += row["bytes_in"].get<std::uint64_t>();
        out += row["bytes_out"].get<std::uint64_t>();
    }
    EXPECT_EQ(in, kSessions * kInBytes);
    EXPECT_EQ(out, kSessions * kOutBytes);
}

TEST_F(Tenants, TheAuditLogSaysWhoDidWhat) {
    start("[tenants]\nsessions = 1\n");
    const std::string alice = add("alice");
    output({"tenant", "set", "alice", "priority=7"});
    const auto program = hold(alice);
    EXPECT_NE(run(alice, "quota_shown", 0)->wait(), 0) << "one session is the most";
    EXPECT_NE(run("no-token-of-this-server", "quota_shown", 0)->wait(), 0);
    const std::string session = status()["sessions"][0]["id"];
    output({"session", "kill", session, "--reason", "maintenance"});
    ASSERT_TRUE(eventually([&] { return status()["sessions"].empty(); }));
    const auto second = hold(alice);
    second->end_input();
    EXPECT_TRUE(second->succeeds());
    ASSERT_TRUE(eventually([&] { return status()["sessions"].empty(); }));
    daemon_->signal(SIGTERM);
    ASSERT_TRUE(daemon_->wait_for_end(milliseconds(20000)));

    const std::string administrator = "user " + std::to_string(::geteuid());
    std::vector<nlohmann::json> records;
    std::ifstream log(state_.path() + "/audit.log");
    for (std::string line; std::getline(log, line);) {
        records.push_back(nlohmann::json::parse(line));
    }
    const auto count = [&](const nlohmann::json& wanted) {
        return std::count_if(records.begin(), records.end(), [&](const nlohmann::json& record) {
            return std::ranges::all_of(wanted.items(), [&](const auto& entry) {
                return record.contains(entry.key()) && record[entry.key()] == entry.value();
            });
        });
    };
    using Wanted = nlohmann::json;
    EXPECT_EQ(
        count(Wanted{{"event", "changed"}, {"by", administrator}, {"tenant", "alice"}, {"reason", "added alice"}}), 1);
    EXPECT_EQ(
        count(Wanted{
            {"event", "changed"}, {"by", administrator}, {"tenant", "alice"}, {"details", Wanted{{"priority", "7"}}}}),
        1);
    EXPECT_EQ(count(Wanted{{"event", "admitted"}, {"by", "tenant alice"}, {"tenant", "alice"}}), 2);
    EXPECT_EQ(count(Wanted{{"event", "refused"}, {"by", "server"}, {"tenant", "alice"}}), 1);
    EXPECT_EQ(count(Wanted{{"event", "refused"}, {"by", "server"}}), 2) << "the wrong token as well";
    EXPECT_EQ(count(Wanted{{"event", "ended"}, {"by", administrator}, {"session", session}, {"reason", "maintenance"}}),
              1);
    EXPECT_EQ(count(Wanted{{"event", "ended"}, {"by", "tenant alice"}, {"reason", "its client left"}}), 1);
}

TEST_F(Tenants, CannotFillTheAuditLogWithRefusals) {
    start("");
    add("alice");
    constexpr int kPeers = 200;
    for (int i = 0; i < kPeers; ++i) {
        Client stranger(daemon_->address());
        stranger.send_hello({.token = "no-token-of-this-server"});
        EXPECT_NE(stranger.refusal().find("token"), std::string::npos);
    }
    daemon_->signal(SIGTERM);
    ASSERT_TRUE(daemon_->wait_for_end(milliseconds(20000)));
    std::ifstream log(state_.path() + "/audit.log");
    int refused = 0;
    for (std::string line; std::getline(log, line);) {
        refused += nlohmann::json::parse(line)["event"] == "refused" ? 1 : 0;
    }
    EXPECT_GE(refused, 60);
    EXPECT_LE(refused, 120) << "60 a minute, and a minute may have ended";
}

}  // namespace
}  // namespace gpupool::test
