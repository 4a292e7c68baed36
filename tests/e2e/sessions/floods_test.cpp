// Much work behind work that waits: the worker accepts as much as a driver does, and still serves everything else.

#include "tests/e2e/sessions/sessions.h"

namespace gpupool::test {
namespace {

class Floods : public SessionTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(Floods, AllWorkRunsAndOtherStreamsAreNotBlocked) {
    Program program(*daemon_, session_program(GetParam()));
    EXPECT_TRUE(program.succeeds());
}

INSTANTIATE_TEST_SUITE_P(Of, Floods,
                         ::testing::Values("function_flood", "copy_flood", "synchronize_flood", "failed_download"),
                         [](const auto& info) { return std::string(info.param); });

// More than the worker queues: the sending thread blocks, and the session survives.
class Overflows : public SessionTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(Overflows, OnlyTheSendingThreadIsThrottled) {
    Program program(*daemon_, session_program(GetParam()));
    EXPECT_TRUE(program.succeeds(milliseconds(150000)));
    EXPECT_GT(program.number("sent"), 0);
    EXPECT_LT(program.number("sent"), 384 * 16 + 4096) << "more than 384 MiB and what the connection buffers";
}

INSTANTIATE_TEST_SUITE_P(Of, Overflows, ::testing::Values("legacy_overflow", "own_overflow", "streams_overflow"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace gpupool::test
