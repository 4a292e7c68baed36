// Much work behind something that waits: the worker takes it as a driver does, and stays able to do everything else.

#include "tests/e2e/sessions/sessions.h"

namespace gpupool::test {
namespace {

class Floods : public SessionTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(Floods, GoThroughAndHoldUpNothingElse) {
    Program program(*daemon_, session_program(GetParam()));
    EXPECT_TRUE(program.succeeds(milliseconds(60000)));
}

INSTANTIATE_TEST_SUITE_P(Of, Floods,
                         ::testing::Values("function_flood", "copy_flood", "synchronize_flood", "failed_download"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace gpupool::test
