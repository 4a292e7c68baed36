// Applications that end, fork or unload in unusual ways: they end by themselves, with their own status, and leave
// nothing.

#include "tests/e2e/sessions/sessions.h"

namespace gpupool::test {
namespace {

class Endings : public SessionTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(Endings, EndOrderlyAndLeaveNothing) {
    // Several times: most of what can go wrong here is a race.
    for (int round = 0; round < 3; ++round) {
        Program program(*daemon_, session_program(GetParam()));
        ASSERT_TRUE(program.succeeds()) << "round " << round;
        EXPECT_EQ(program.errors(), "");
    }
    EXPECT_TRUE(eventually([&] { return others().empty(); }, milliseconds(1000)));
}

INSTANTIATE_TEST_SUITE_P(By, Endings,
                         ::testing::Values("visit", "atexit", "late_atexit", "destructor", "exit_busy",
                                           "exit_elsewhere", "quick_exit", "close", "reload", "fork_exec", "fork_busy",
                                           "signals"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace gpupool::test
