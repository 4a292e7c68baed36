// A server that is full: by default a program fails at once; with GPUPOOL_WAIT_WHEN_FULL it waits for a place.

#include <memory>
#include <thread>

#include "tests/e2e/sessions/sessions.h"

namespace gpupool::test {
namespace {

class FullServer : public ::testing::Test {
  protected:
    FullServer() : daemon_(session_settings("[limits]\nsessions = 1\n")), first_(daemon_, session_program("steady")) {}
    void SetUp() override { ASSERT_TRUE(first_.says("ready")); }
    static std::vector<std::string> vector_add() { return {std::string(TEST_PROGRAMS) + "/vector_add"}; }

    Daemon daemon_;
    Program first_;
};

TEST_F(FullServer, RefusesAtOnceByDefault) {
    const auto start = now_ms();
    Program second(daemon_, vector_add());
    EXPECT_NE(second.wait(), 0);
    EXPECT_LT(now_ms() - start, 4000);
    const std::string errors = second.errors();
    EXPECT_NE(errors.find("all 1 sessions of the server are in use"), std::string::npos) << errors;
    EXPECT_NE(errors.find("GPUPOOL_WAIT_WHEN_FULL"), std::string::npos) << errors;
}

TEST_F(FullServer, ClientWaitsForAPlaceWhenConfigured) {
    Program second(daemon_, vector_add(), {"GPUPOOL_WAIT_WHEN_FULL=60s"});
    ASSERT_TRUE(
        eventually([&] { return daemon_.log().find("waits for a place, at position 1") != std::string::npos; }));
    EXPECT_TRUE(process_exists(second.process()));
    first_.end_input();
    EXPECT_TRUE(first_.succeeds());
    EXPECT_TRUE(second.succeeds());
    EXPECT_EQ(second.errors(), "");
}

TEST_F(FullServer, WaitTimesOut) {
    const auto start = now_ms();
    Program second(daemon_, vector_add(), {"GPUPOOL_WAIT_WHEN_FULL=1s"});
    EXPECT_NE(second.wait(), 0);
    EXPECT_LT(now_ms() - start, 6000);
    const std::string errors = second.errors();
    EXPECT_NE(errors.find("all 1 sessions of the server are in use"), std::string::npos) << errors;
    EXPECT_NE(errors.find("GPUPOOL_WAIT_WHEN_FULL has passed"), std::string::npos) << errors;
}

}  // namespace
}  // namespace gpupool::test
