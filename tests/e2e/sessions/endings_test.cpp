// Applications that end, fork or unload the library in unusual ways: each ends by itself with its own status and leaves
// nothing behind.

#include "tests/e2e/sessions/sessions.h"

namespace gpupool::test {
namespace {

class Endings : public SessionTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(Endings, ProgramEndsWithItsStatusAndLeavesNothing) {
    // Repeated, since most possible failures here are races.
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
