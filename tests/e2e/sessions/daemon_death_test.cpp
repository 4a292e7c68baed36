// The daemon dies, restarts, or is stopped in order, while programs run.

#include <signal.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "tests/e2e/sessions/sessions.h"

namespace gpupool::test {
namespace {

class DaemonDeath : public SessionTest {};

// Whether the session's worker has logged that it lost the daemon. It may do so twice: a daemon that is being killed
// can still accept a connection.
bool has_lost_the_daemon(const std::string& log, const cli::SessionStatus& session) {
    const std::string worker = " " + std::to_string(session.worker_process_id) + ":";
    std::istringstream lines(log);
    for (std::string line; std::getline(lines, line);) {
        if (line.find(worker) != std::string::npos && line.find("lost the daemon") != std::string::npos) {
            return true;
        }
    }
    return false;
}

TEST_F(DaemonDeath, RunningSessionsContinueAndAreTakenOver) {
    Program second(*daemon_, session_program("steady"));
    ASSERT_TRUE(second.says("ready"));
    // A worker may report its memory a moment after its program is ready. Both programs use the same.
    std::vector<cli::SessionStatus> before;
    ASSERT_TRUE(eventually([&] {
        before = daemon_->sessions(2);
        return before.size() == 2 && before[0].memory_used_bytes == before[1].memory_used_bytes;
    }));
    daemon_->kill_hard();
    ASSERT_TRUE(eventually([&] {
        return std::all_of(before.begin(), before.end(),
                           [&](const auto& session) { return has_lost_the_daemon(daemon_->log(), session); });
    }));
    EXPECT_TRUE(second.checks_again());
    EXPECT_TRUE(bystander_->checks_again());
    daemon_->start();
    const auto after = daemon_->sessions(2);
    for (const auto& was : before) {
        EXPECT_TRUE(std::any_of(after.begin(), after.end(), [&](const auto& is) {
            return is.id == was.id && is.worker_process_id == was.worker_process_id &&
                   is.process_id == was.process_id && is.memory_used_bytes == was.memory_used_bytes;
        })) << was.id;
    }
    Program visitor(*daemon_, {std::string(TEST_PROGRAMS) + "/vector_add"});
    EXPECT_TRUE(visitor.succeeds());
    second.end_input();
    EXPECT_TRUE(second.succeeds());
    // A session that was taken over is cleaned up like one that this daemon started.
    EXPECT_EQ(daemon_->sessions(1).at(0).process_id, static_cast<std::uint32_t>(bystander_->process()));
}

TEST_F(DaemonDeath, ClientKilledWhileTheDaemonIsDownLeavesNothing) {
    Program victim(*daemon_, session_program("busy"));
    ASSERT_TRUE(victim.says("ready"));
    const auto session = session_of(*daemon_, victim.process());
    daemon_->kill_hard();
    victim.signal(SIGKILL);
    EXPECT_TRUE(
        eventually([&] { return !process_exists(static_cast<pid_t>(session.worker_process_id)); }, milliseconds(1000)));
    daemon_->start();
    daemon_->sessions(1);
}

TEST_F(DaemonDeath, OrderlyStopGivesClientsTheError) {
    bystander_survives_ = false;
    Program waiting(*daemon_, session_program("wait_synchronize"));
    Program launching(*daemon_, session_program("launches"));
    ASSERT_TRUE(waiting.says("waiting"));
    ASSERT_TRUE(launching.says("waiting"));
    const auto sessions = daemon_->sessions(3);
    const auto stopped_at = now_ms();
    daemon_->signal(SIGTERM);
    for (Program* program : {&waiting, &launching}) {
        EXPECT_EQ(program->number("error", milliseconds(10000)), 46);
        EXPECT_LE(program->number("at", milliseconds(10000)) - stopped_at, 2000);
        EXPECT_TRUE(program->succeeds());
        EXPECT_NE(program->errors().find("is lost: the server ended it: the server is stopping"), std::string::npos)
            << program->errors();
    }
    EXPECT_EQ(daemon_->wait_for_end(milliseconds(10000)), 0);
    for (const auto& session : sessions) {
        EXPECT_FALSE(process_exists(static_cast<pid_t>(session.worker_process_id)));
    }
    // The bystander's next call failed and it reported the error; it did not crash.
    EXPECT_EQ(bystander_->wait(), 3 << 8) << bystander_->output();
}

}  // namespace
}  // namespace gpupool::test
