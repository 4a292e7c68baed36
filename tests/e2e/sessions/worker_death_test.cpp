// Workers that die: their client gets CUDA errors within a second, whatever it was doing, can continue to make calls,
// and ends normally. Other sessions are not affected.

#include <signal.h>

#include <string>

#include "tests/e2e/sessions/sessions.h"

namespace gpupool::test {
namespace {

constexpr long long kSessionLost = 46;  // CUDA_ERROR_DEVICE_UNAVAILABLE

struct Death {
    const char* mode;
    int signal;
};

void PrintTo(const Death& death, std::ostream* out) {
    *out << death.mode << (death.signal == SIGKILL ? ", SIGKILL" : ", SIGSEGV");
}

class WorkerDeath : public SessionTest, public ::testing::WithParamInterface<Death> {
  protected:
    void SetUp() override {
        // A worker that must die of a signal needs a sanitizer that does not handle it.
        shares_server_ = false;
        ::setenv("ASAN_OPTIONS", "handle_segv=0:detect_leaks=0", 1);
        SessionTest::SetUp();
    }
    void TearDown() override {
        SessionTest::TearDown();
        ::unsetenv("ASAN_OPTIONS");
    }
};

TEST_P(WorkerDeath, ReturnsAnErrorAtOnce) {
    const auto [mode, signal] = GetParam();
    Program victim(*daemon_, session_program(mode));
    ASSERT_TRUE(victim.says("waiting"));
    const auto session = session_of(*daemon_, victim.process());
    if (std::string(mode).starts_with("wait_")) {
        ASSERT_TRUE(victim.blocks());  // inside the call
    }
    const auto killed_at = now_ms();
    ASSERT_EQ(::kill(static_cast<pid_t>(session.worker_process_id), signal), 0);
    EXPECT_EQ(victim.number("error", milliseconds(5000)), kSessionLost);
    EXPECT_LE(victim.number("at", milliseconds(5000)) - killed_at, 1000);
    EXPECT_TRUE(victim.succeeds(milliseconds(10000)));
    EXPECT_TRUE(is_gone(*daemon_, session));
}

std::string name_of(const ::testing::TestParamInfo<Death>& info) {
    return std::string(info.param.mode) + (info.param.signal == SIGKILL ? "_killed" : "_crashed");
}

INSTANTIATE_TEST_SUITE_P(In, WorkerDeath,
                         ::testing::Values(Death{"wait_synchronize", SIGKILL}, Death{"wait_synchronize", SIGSEGV},
                                           Death{"wait_event", SIGKILL}, Death{"wait_download", SIGKILL},
                                           Death{"wait_download", SIGSEGV}, Death{"wait_upload", SIGKILL},
                                           Death{"wait_upload", SIGSEGV}, Death{"wait_host_function", SIGKILL},
                                           Death{"wait_host_function", SIGSEGV}, Death{"launches", SIGKILL},
                                           Death{"launches", SIGSEGV}),
                         name_of);

}  // namespace
}  // namespace gpupool::test
