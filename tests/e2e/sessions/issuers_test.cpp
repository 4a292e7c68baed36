// Several threads issue the launches of several streams; programs observe the same order.

#include "tests/e2e/sessions/sessions.h"

namespace gpupool::test {
namespace {

class SessionIssuers : public SessionTest, public ::testing::WithParamInterface<int> {
  protected:
    SessionIssuers() { settings_ = "[limits]\nissuers = " + std::to_string(GetParam()) + "\n"; }
};

TEST_P(SessionIssuers, KeepTheOrderOfLaunches) {
    Program order(*daemon_, {std::string(GPU_PROGRAMS) + "/order_one_stream"});
    Program threads(*daemon_, {std::string(TEST_PROGRAMS) + "/multi_thread"});
    EXPECT_TRUE(threads.succeeds(milliseconds(150000)));
    EXPECT_TRUE(order.succeeds(milliseconds(150000)));
    EXPECT_EQ(server_log().find("issuer 1 begins") != std::string::npos, GetParam() != 0) << server_log();
}

INSTANTIATE_TEST_SUITE_P(Threads, SessionIssuers, ::testing::Values(0, 1, 3));

}  // namespace
}  // namespace gpupool::test
