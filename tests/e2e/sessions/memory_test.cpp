// Memory: a quota is exact, and one thread's frees and failed copies do not affect other threads.

#include "tests/e2e/sessions/sessions.h"

namespace gpupool::test {
namespace {

class SessionMemory : public SessionTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(SessionMemory, BehavesAsWithALocalDriver) {
    for (const char* transport : {"tcp", "shm"}) {
        Program program(*daemon_, session_program(GetParam()), {std::string("GPUPOOL_TRANSPORT=") + transport});
        EXPECT_TRUE(program.succeeds()) << transport;
    }
}

INSTANTIATE_TEST_SUITE_P(Of, SessionMemory,
                         ::testing::Values("free_behind_wait", "free_in_function", "failing_copies", "load_when_full"),
                         [](const auto& info) { return std::string(info.param); });

class SessionQuota : public SessionTest {
  protected:
    SessionQuota() { settings_ = "[limits]\nsession_memory = \"64MiB\"\n"; }
};

TEST_F(SessionQuota, IsAvailableExactly) {
    Program program(*daemon_, session_program("quota"));
    EXPECT_TRUE(program.succeeds());
    EXPECT_NE(server_log().find("would pass the quota of 67108864"), std::string::npos) << server_log();
}

}  // namespace
}  // namespace gpupool::test
