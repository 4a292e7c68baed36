// Killed clients: their worker and their memory are gone within a second, and other sessions are not affected.

#include <signal.h>

#include <random>
#include <thread>

#include "tests/e2e/sessions/sessions.h"

namespace gpupool::test {
namespace {

class ClientDeath : public SessionTest {};

std::uint64_t memory_in_use(const Daemon& daemon) {
    const auto status = daemon.status();
    return status && !status->devices.empty() ? status->devices[0].memory_used_bytes : 0;
}

TEST_F(ClientDeath, KillingABusyProgramLeavesNothing) {
    constexpr int kRounds = 8;
    std::mt19937 random(20260721);
    const auto before = memory_in_use(*daemon_);
    for (int round = 0; round < kRounds; ++round) {
        Program victim(*daemon_, session_program("busy"));
        ASSERT_TRUE(victim.says("ready"));
        const auto session = session_of(*daemon_, victim.process());
        std::this_thread::sleep_for(milliseconds(random() % 150));  // a time as good as any, within a few rounds
        victim.signal(SIGKILL);
        EXPECT_TRUE(is_gone(*daemon_, session)) << "round " << round;
        EXPECT_TRUE(others().empty());
        EXPECT_LE(memory_in_use(*daemon_), before);
    }
}

// Kills the program at any time during its start, which no event marks: before the handshake, in it, before the first
// call.
TEST_F(ClientDeath, KillingAStartingProgramLeavesNothing) {
    std::mt19937 random(7);
    for (int round = 0; round < 12; ++round) {
        Program victim(*daemon_, session_program("busy"));
        std::this_thread::sleep_for(milliseconds(random() % 600));
        victim.signal(SIGKILL);
        victim.wait();
    }
    EXPECT_TRUE(eventually([&] { return others().empty() && daemon_->children() == 1; }, milliseconds(5000)))
        << others().size() << " sessions, " << daemon_->children() << " workers";
}

// The program holds much memory and its kernels still run; neither delays the end.
TEST_F(ClientDeath, MemoryOfAKilledProgramIsFreedAtOnce) {
    Program victim(*daemon_, {std::string(TEST_PROGRAMS) + "/long_running", "100", "256"});
    ASSERT_TRUE(eventually([&] { return victim.output().find("ready") != std::string::npos; }, kTimeout));
    const auto session = session_of(*daemon_, victim.process());
    EXPECT_TRUE(eventually([&] { return session_of(*daemon_, victim.process()).memory_used_bytes >= 256u << 20; }));
    victim.signal(SIGKILL);
    EXPECT_TRUE(is_gone(*daemon_, session));
    EXPECT_LT(memory_in_use(*daemon_), 200u << 20);
}

TEST_F(ClientDeath, OtherSignalsLeaveNothingEither) {
    for (const int signal : {SIGTERM, SIGSEGV, SIGABRT}) {
        Program victim(*daemon_, session_program("busy"), {"ASAN_OPTIONS=detect_leaks=0:handle_segv=0"});
        ASSERT_TRUE(victim.says("ready"));
        const auto session = session_of(*daemon_, victim.process());
        victim.signal(signal);
        EXPECT_TRUE(is_gone(*daemon_, session)) << "signal " << signal;
    }
}

// A stopped client is not dead: its session stays, and continues when the client does.
TEST_F(ClientDeath, StoppedClientKeepsItsSession) {
    Program victim(*daemon_, session_program("steady"));
    ASSERT_TRUE(victim.says("ready"));
    expect_session_survives_stop(victim);
}

}  // namespace
}  // namespace gpupool::test
