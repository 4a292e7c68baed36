// Threads of one program that use everything at once, over each transport, with and without issuers.

#include "tests/e2e/sessions/sessions.h"

namespace gpupool::test {
namespace {

struct Way {
    const char* transport;
    int issuers;
};

class Stress : public SessionTest, public ::testing::WithParamInterface<Way> {
  protected:
    Stress() { settings_ = "[limits]\nissuers = " + std::to_string(GetParam().issuers) + "\n"; }
};

TEST_P(Stress, EveryThreadReadsItsStreamsResult) {
    Program program(*daemon_, session_program("stress"),
                    {std::string("GPUPOOL_TRANSPORT=") + GetParam().transport, "GPUPOOL_SPIN=always"});
    EXPECT_TRUE(program.succeeds(milliseconds(120000)));
    EXPECT_EQ(program.number("held", milliseconds(0)), 900);
}

class QueuedWork : public SessionTest {};

TEST_F(QueuedWork, StatusNamesTheReasonWhyItWaits) {
    using Waits = std::vector<std::pair<std::string, std::uint32_t>>;
    Program program(*daemon_, session_program("queued"));
    ASSERT_TRUE(program.says("ready"));
    const auto waits = [&] { return session_of(*daemon_, program.process()).waits; };
    EXPECT_TRUE(eventually([&] { return waits() == Waits{{"credit", 1}}; })) << waits().size();
    program.end_input();
    EXPECT_TRUE(program.succeeds());
}

class Linker : public SessionTest {};

TEST_F(Linker, AcceptsConcurrentAdditions) {
    Program program(*daemon_, session_program("linker"));
    EXPECT_TRUE(program.succeeds());
    EXPECT_EQ(program.number("globals", milliseconds(0)), 32);
}

std::string name_of(const ::testing::TestParamInfo<Way>& info) {
    return std::string(info.param.transport) + "_issuers_" + std::to_string(info.param.issuers);
}

INSTANTIATE_TEST_SUITE_P(Over, Stress, ::testing::Values(Way{"tcp", 0}, Way{"tcp", 2}, Way{"shm", 0}, Way{"shm", 2}),
                         name_of);

}  // namespace
}  // namespace gpupool::test
