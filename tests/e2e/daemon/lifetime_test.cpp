// The rules for the lifetime of a session and its worker: what must end them, and what must not.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <sstream>
#include <thread>

#include "tests/e2e/daemon/harness.h"

namespace gpupool::test {
namespace {

pid_t worker_of(const cli::SessionStatus& session) {
    return static_cast<pid_t>(session.worker_process_id);
}

// The first line of the daemon's log that contains `text`.
std::string line_of(const Daemon& daemon, const std::string& text) {
    std::istringstream log(daemon.log());
    std::string line;
    while (std::getline(log, line) && line.find(text) == std::string::npos) {
    }
    return line;
}

TEST(Lifetime, WorkerEndsWithinASecondOfItsClient) {
    const Daemon daemon;
    Client client(daemon.address());
    client.send_hello();
    client.welcome();
    const auto session = daemon.sessions(1).at(0);
    ASSERT_TRUE(process_exists(worker_of(session)));
    client.leave();
    EXPECT_TRUE(eventually([&] { return !process_exists(worker_of(session)); }, milliseconds(1000)));
    daemon.sessions(0);
    const std::string line = line_of(daemon, "(exit code 0)");
    EXPECT_NE(line.find(" info "), std::string::npos) << line;
}

TEST(Lifetime, WorkerThatReportsItsEndAndStaysIsKilledWithinASecond) {
    const Daemon daemon;
    Client client(daemon.address());
    client.send_hello({.process_name = "never-ends"});
    client.welcome();
    const auto session = daemon.sessions(1).at(0);
    client.leave();
    EXPECT_TRUE(eventually([&] { return !process_exists(worker_of(session)); }, milliseconds(1300)));
    daemon.sessions(0);
}

TEST(Lifetime, WorkerDeathAffectsOnlyItsClient) {
    const Daemon daemon;
    Client bystander(daemon.address());
    bystander.send_hello();
    bystander.welcome();
    Client client(daemon.address());
    client.send_hello({.process_name = "crash"});
    client.welcome();
    daemon.sessions(2);
    client.send_bytes(std::as_bytes(std::span("x", 1)));
    EXPECT_TRUE(client.ended(milliseconds(3000)));
    const auto left = daemon.sessions(1).at(0);
    EXPECT_EQ(left.process_name, "test");
    EXPECT_FALSE(bystander.ended(milliseconds(0)));
    const std::string line = line_of(daemon, "(signal 9)");
    EXPECT_NE(line.find(" warn"), std::string::npos) << line;
}

TEST(Lifetime, WorkerDeathBeforeTakingTheSessionIsReportedToTheClient) {
    const Daemon daemon;
    Client client(daemon.address());
    client.send_hello({.process_name = "die-early"});
    EXPECT_NE(client.refusal().find("exit code 3"), std::string::npos);
    EXPECT_TRUE(client.ended(milliseconds(3000)));
    daemon.sessions(0);
}

TEST(Lifetime, FailureToStartAWorkerIsReportedToTheClient) {
    TemporaryFolder folder;
    const auto worker = folder.write("worker", std::string("#!/bin/sh\nexec ") + STAND_IN_WORKER + " \"$@\"\n", true);
    const Daemon daemon("worker = \"" + worker + "\"\n");
    ASSERT_EQ(::chmod(worker.c_str(), 0600), 0);
    Client client(daemon.address());
    client.send_hello();
    EXPECT_NE(client.refusal().find("cannot start"), std::string::npos);
}

TEST(Lifetime, UnresponsiveWorkerIsKilled) {
    const Daemon daemon("[workers]\nsilence_timeout_ms = 2000\n");
    Client client(daemon.address());
    client.send_hello();
    client.welcome();
    const auto session = daemon.sessions(1).at(0);
    ::kill(worker_of(session), SIGSTOP);
    EXPECT_TRUE(client.ended(milliseconds(4000)));
    daemon.sessions(0);
}

TEST(Lifetime, WorkersSurviveADaemonCrashAndAreTakenOver) {
    Daemon daemon;
    Client first(daemon.address());
    first.send_hello({.process_name = "first", .memory_bytes = 1u << 30});
    const auto first_id = first.welcome();
    Client second(daemon.address());
    second.send_hello({.process_name = "second"});
    second.welcome();
    const auto before = daemon.sessions(2);
    const auto address = daemon.address();

    daemon.kill_hard();
    EXPECT_FALSE(first.ended(milliseconds(300)));
    daemon.start();
    EXPECT_EQ(daemon.address(), address);

    const auto after = daemon.sessions(2);
    for (const auto& was : before) {
        const auto is =
            std::find_if(after.begin(), after.end(), [&](const auto& session) { return session.id == was.id; });
        ASSERT_NE(is, after.end());
        EXPECT_EQ(is->worker_process_id, was.worker_process_id);
        EXPECT_EQ(is->process_name, was.process_name);
        EXPECT_EQ(is->process_id, was.process_id);
        EXPECT_EQ(is->user_name, was.user_name);
        EXPECT_EQ(is->peer, was.peer);
        EXPECT_EQ(is->memory_used_bytes, was.memory_used_bytes);
        EXPECT_EQ(is->memory_quota_bytes, was.memory_quota_bytes);
        EXPECT_EQ(is->device, 1u);
    }
    // A session that was taken over ends as one that this daemon started.
    second.leave();
    EXPECT_EQ(daemon.sessions(1).at(0).id, first_id);
    // So does one whose worker dies.
    ::kill(worker_of(daemon.sessions(1).at(0)), SIGKILL);
    EXPECT_TRUE(first.ended(milliseconds(1000)));
    daemon.sessions(0);
}

TEST(Lifetime, HandoverKeepsSessionsAndAStopOfTheNextDaemonEndsThem) {
    Daemon daemon;
    Client client(daemon.address());
    client.send_hello();
    client.welcome();
    const auto session = daemon.sessions(1).at(0);
    daemon.signal(SIGUSR1);
    EXPECT_EQ(daemon.wait_for_end(milliseconds(3000)), 0);
    EXPECT_TRUE(process_exists(worker_of(session)));
    daemon.start();
    EXPECT_EQ(daemon.sessions(1).at(0).id, session.id);
    daemon.signal(SIGTERM);
    EXPECT_EQ(daemon.wait_for_end(milliseconds(5000)), 0);
    EXPECT_FALSE(process_exists(worker_of(session)));
    EXPECT_TRUE(client.ended(milliseconds(1000)));
}

TEST(Lifetime, WorkersEndOnceTheDaemonIsGoneForLongerThanTheGrace) {
    Daemon daemon("[workers]\ndaemon_grace_ms = 500\n");
    Client client(daemon.address());
    client.send_hello();
    client.welcome();
    const auto session = daemon.sessions(1).at(0);
    Client stubborn(daemon.address());
    stubborn.send_hello({.process_name = "ignores-stop"});
    stubborn.welcome();
    daemon.sessions(2);
    daemon.kill_hard();
    // The client first receives a notice, then the connection ends.
    const auto notice = client.read(milliseconds(3000));
    ASSERT_TRUE(notice) << notice.error().message;
    EXPECT_EQ(notice->type, wire::FrameType::control);
    EXPECT_TRUE(client.ended(milliseconds(1000)));
    EXPECT_TRUE(eventually([&] { return !process_exists(worker_of(session)); }, milliseconds(1000)));
    // A worker that is stuck is killed.
    EXPECT_TRUE(stubborn.ended(milliseconds(4000)));
}

TEST(Lifetime, OrderlyStopNotifiesClientsAndLeavesNothing) {
    Daemon daemon;
    Client client(daemon.address());
    client.send_hello();
    client.welcome();
    const auto session = daemon.sessions(1).at(0);
    daemon.signal(SIGTERM);
    const auto notice = client.read(milliseconds(3000));
    ASSERT_TRUE(notice) << notice.error().message;
    EXPECT_EQ(notice->type, wire::FrameType::control);
    EXPECT_TRUE(client.ended(milliseconds(1000)));
    EXPECT_EQ(daemon.wait_for_end(milliseconds(3000)), 0);
    EXPECT_FALSE(process_exists(worker_of(session)));
    struct stat facts {};
    const auto port = daemon.address().substr(daemon.address().rfind(':') + 1);
    EXPECT_NE(::stat((daemon.folder().path() + "/run/" + port).c_str(), &facts), 0) << "the runtime folder is left";
}

TEST(Lifetime, OrderlyStopKillsAWorkerThatDoesNotEnd) {
    Daemon daemon("[workers]\nstop_timeout_ms = 500\n");
    Client client(daemon.address());
    client.send_hello({.process_name = "ignores-stop"});
    client.welcome();
    const auto session = daemon.sessions(1).at(0);
    daemon.signal(SIGTERM);
    EXPECT_EQ(daemon.wait_for_end(milliseconds(1500)), 0);  // sooner than the worker would end by itself
    EXPECT_FALSE(process_exists(worker_of(session)));
}

TEST(Lifetime, PendingConnectionDoesNotDelayTheStop) {
    Daemon daemon;
    Client silent(daemon.address());
    ASSERT_TRUE(eventually([&] { return daemon.status().ok(); }));
    daemon.signal(SIGTERM);
    EXPECT_EQ(daemon.wait_for_end(milliseconds(2000)), 0);
    EXPECT_TRUE(silent.ended(milliseconds(1000)));
}

// The daemon dies after it has forked the worker's process and before that process runs the worker's code.
TEST(Lifetime, DaemonDeathBetweenForkAndExecLeavesNoOrphan) {
    TemporaryFolder folder;
    const std::string gate = folder.path() + "/gate";
    ASSERT_EQ(::mkfifo(gate.c_str(), 0600), 0);
    const UniqueFd opener(::open(gate.c_str(), O_RDWR | O_CLOEXEC));  // not for writing only, which would block
    ASSERT_GE(opener.get(), 0);
    const auto worker =
        folder.write("worker",
                     std::string("#!/bin/sh\n[ \"$1\" = --probe-contexts ] || { echo $$ > ") + folder.path() +
                         "/pid; read line < " + gate + "; }\nexec " + STAND_IN_WORKER + " \"$@\"\n",
                     true);
    Daemon daemon("worker = \"" + worker + "\"\n[workers]\ndaemon_grace_ms = 300\n");
    Client client(daemon.address());
    client.send_hello();
    const std::string pid_file = folder.path() + "/pid";
    ASSERT_TRUE(eventually([&] {
        struct stat facts {};
        return ::stat(pid_file.c_str(), &facts) == 0 && facts.st_size > 1;
    }));
    FILE* file = std::fopen(pid_file.c_str(), "r");
    int process = -1;
    ASSERT_EQ(std::fscanf(file, "%d", &process), 1);
    std::fclose(file);
    daemon.kill_hard();
    EXPECT_TRUE(process_exists(process));
    ASSERT_EQ(::write(opener.get(), "\n", 1), 1);
    EXPECT_TRUE(client.ended(milliseconds(4000)));
    EXPECT_TRUE(eventually([&] { return !process_exists(process); }, milliseconds(3000)));
}

TEST(Lifetime, WorkerInheritsOnlyItsSocket) {
    const Daemon daemon;
    Client silent(daemon.address());  // gives the daemon one more open descriptor
    Client client(daemon.address());
    client.send_hello();
    client.welcome();
    EXPECT_EQ(client.strays(), 0);
    const auto session = daemon.sessions(1).at(0);
    EXPECT_EQ(::getpgid(worker_of(session)), worker_of(session));
}

TEST(Lifetime, DaemonOutlivesItsTerminal) {
    const Daemon daemon;
    Client client(daemon.address());
    client.send_hello();
    client.welcome();
    daemon.signal(SIGHUP);
    EXPECT_TRUE(eventually([&] { return !line_of(daemon, "received SIGHUP").empty(); }));
    EXPECT_EQ(daemon.sessions(1).size(), 1u);
    EXPECT_FALSE(client.ended(milliseconds(0)));
}

TEST(Lifetime, SecondDaemonOnTheSamePortIsRefused) {
    const Daemon daemon;
    const auto config = daemon.folder().path() + "/gpupoold.toml";
    const auto baseline = run_program({GPUPOOLD, "--config", config, "--listen", daemon.address()});
    EXPECT_TRUE(WIFEXITED(baseline.status) && WEXITSTATUS(baseline.status) == 1);
    EXPECT_NE(baseline.errors.find(daemon.address()), std::string::npos) << baseline.errors;
    EXPECT_TRUE(daemon.status().ok());
}

TEST(Lifetime, AThousandPendingConnectionsLeaveNothingBehind) {
    const Daemon daemon("[limits]\nhandshakes = 1000\nsessions = 1000\n");
    ASSERT_TRUE(daemon.status().ok());
    const auto descriptors = daemon.open_descriptors();
    for (int i = 0; i < 900; ++i) {
        Client visitor(daemon.address());
        ASSERT_TRUE(visitor.connected());
        if (i % 3 == 1) {
            visitor.send_bytes(std::as_bytes(std::span("GET / HTTP/1.1\r\n\r\n")));
        }
        if (i % 3 == 2) {
            visitor.send_bytes(std::as_bytes(std::span("GPF1")));
        }
    }
    for (int i = 0; i < 100; ++i) {
        Client client(daemon.address());
        client.send_hello();
        if (i % 2 == 0) {
            client.welcome();
        }
    }
    daemon.sessions(0);
    EXPECT_TRUE(eventually([&] { return daemon.children() == 0; })) << daemon.children();
    // The daemon releases closed pending connections when it accepts the next one.
    EXPECT_TRUE(eventually([&] { return daemon.status().ok() && daemon.open_descriptors() <= descriptors + 2; }))
        << descriptors << " before, now " << daemon.open_descriptors();
}

}  // namespace
}  // namespace gpupool::test
