// The limits that hold for a running session, and their changes while it runs.

#include <signal.h>

#include <fstream>

#include "tests/e2e/sessions/tenants.h"

namespace gpupool::test {
namespace {

class Limits : public TenantsTest {
  protected:
    // The session that waits for `reason` now, if any.
    [[nodiscard]] bool waits_for(const std::string& reason) const {
        const auto shown = status();
        return shown["sessions"].size() == 1 && shown["sessions"][0].dump().find(reason) != std::string::npos;
    }
    [[nodiscard]] std::string only_session() const { return status()["sessions"].at(0)["id"]; }
    // The reason of the last `ended` in the audit log.
    [[nodiscard]] std::string last_end() const {
        std::ifstream log(state_.path() + "/audit.log");
        std::string reason;
        for (std::string line; std::getline(log, line);) {
            const auto record = nlohmann::json::parse(line);
            reason = record["event"] == "ended" ? record["reason"].get<std::string>() : reason;
        }
        return reason;
    }
};

TEST_F(Limits, AnIdleSessionEndsAndABusyOneDoesNot) {
    start("");
    const std::string alice = add("alice");
    const auto busy = run(alice, "limit_busy", 0);
    ASSERT_TRUE(busy->says("ready")) << busy->errors();
    output({"tenant", "set", "alice", "idle_time=1s"});
    const auto idle = hold(alice);
    EXPECT_TRUE(eventually([&] { return last_end().find("idle_time") != std::string::npos; })) << last_end();
    EXPECT_EQ(status()["sessions"].size(), 1u) << "only the idle session ends";
    idle->end_input();
    EXPECT_NE(idle->wait(), 0);
    busy->end_input();
    EXPECT_TRUE(busy->succeeds());
}

TEST_F(Limits, ASessionEndsWithItsLifeTime) {
    start("[tenants]\nlife_time = \"1s\"\n");
    const auto program = run(add("alice"), "limit_busy", 0);
    ASSERT_TRUE(program->says("ready")) << program->errors();
    EXPECT_TRUE(eventually([&] { return status()["sessions"].empty(); }));
    EXPECT_NE(program->wait(), 0);
    EXPECT_TRUE(eventually([&] { return last_end().find("life_time") != std::string::npos; })) << last_end();
}

TEST_F(Limits, DriverObjectsAreCounted) {
    start("");
    const std::string alice = add("alice");
    EXPECT_TRUE(run(alice, "limit_handles", 0, {"HANDLES=400"})->succeeds()) << "no limit so far";
    output({"tenant", "set", "alice", "handles=200"});
    EXPECT_TRUE(run(alice, "limit_handles", 0, {"HANDLES=400", "MOST=200"})->succeeds());
}

// The first copy takes more than a minute unless the limit is lifted while it runs.
TEST_F(Limits, CopiesKeepToTheirBandwidth) {
    start("[tenants]\ncopy_bandwidth = \"64KiB\"\n");
    const std::string alice = add("alice");
    for (const char* const mode : {"limit_copy_in", "limit_copy_out", "limit_copy_pinned"}) {
        const auto program = run(alice, mode, 0);
        ASSERT_TRUE(program->says("ready")) << program->errors();
        EXPECT_TRUE(eventually([&] { return waits_for("bandwidth"); })) << mode;
        output({"session", "set", only_session(), "copy_bandwidth=none"});
        EXPECT_TRUE(program->succeeds()) << mode;
        ASSERT_TRUE(eventually([&] { return status()["sessions"].empty(); }));
    }
}

TEST_F(Limits, MemoryOfARunningSessionChanges) {
    start("[tenants]\nmemory = \"96MiB\"\n", {"GPUPOOL_SOFTGPU_MEMORY=256M"});
    const std::string alice = add("alice");
    const auto program = run(alice, "limit_grow", 0, {"GPUPOOL_MEMORY=32MiB"}, 48 * kMiB);
    ASSERT_TRUE(program->says("full")) << program->errors();
    const std::string session = only_session();
    const auto other = hold(add("bob"));
    const ProcessEnd beyond = command({"session", "set", session, "memory=200MiB"});
    EXPECT_NE(WEXITSTATUS(beyond.status), 0);
    EXPECT_NE(beyond.errors.find("promised"), std::string::npos) << beyond.errors;
    output({"session", "set", session, "memory=64MiB"});
    EXPECT_TRUE(program->says("grown")) << program->errors();
    const auto now = status();
    for (const auto& shown : now["sessions"]) {
        if (shown["id"] == session) {
            EXPECT_EQ(shown["memory_quota_bytes"], 64 * kMiB);
        }
    }
    // Another daemon finds the changed quota in the account.
    daemon_->signal(SIGUSR1);
    ASSERT_TRUE(daemon_->wait_for_end(milliseconds(20000)));
    daemon_->start();
    EXPECT_TRUE(eventually([&] { return status()["sessions"].size() == 2; }));
    output({"session", "set", session, "memory=16MiB"});
    program->end_input();
    EXPECT_TRUE(program->succeeds());
}

}  // namespace
}  // namespace gpupool::test
