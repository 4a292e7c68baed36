// Graphs that are built and changed without waiting for the server give the same results as on a local GPU.

#include <functional>
#include <string>

#include "tests/e2e/sessions/sessions.h"

namespace gpupool::test {
namespace {

class SessionGraphs : public SessionTest {
  protected:
    void expect_word(
        const char* mode, long long word, const std::function<void()>& each = [] {}) {
        for (const char* transport : {"tcp", "shm"}) {
            Program program(*daemon_, session_program(mode), {std::string("GPUPOOL_TRANSPORT=") + transport});
            EXPECT_EQ(program.number("word"), word) << transport << program.errors();
            EXPECT_TRUE(program.succeeds()) << transport;
            said_ = program.output();
            each();
        }
    }

    std::string said_;  // by the last program
};

// The worker throttles the changing thread, as a local driver throttles one that launches graphs when its queue is
// full.
TEST_F(SessionGraphs, ManyChangesThrottleTheProgram) {
    // each launch adds one more
    expect_word("graph_changes", 64 * (300 * 301 / 2), [&] { EXPECT_EQ(said_.find("throttled 1"), 0u) << said_; });
}

// The waiting launches fit the driver's queue, so no thread may block in a change: on a local GPU changes are made at
// once.
TEST_F(SessionGraphs, ChangesBehindWaitingLaunchesDoNotBlock) {
    expect_word("graph_gate", 2 * 490 + 490 * 31);
}

TEST_F(SessionGraphs, EventMayBeDestroyedAfterTheCallThatNamedIt) {
    expect_word("graph_event", 9 * 300);
}

TEST_F(SessionGraphs, WaitingChangeDoesNotBlockOtherGraphs) {
    expect_word("graph_unrelated", 2 * 500 + 499 + 10);
}

TEST_F(SessionGraphs, EventOfADestroyedContextIsRefused) {
    Program program(*daemon_, session_program("graph_of_ended"));
    EXPECT_GT(program.number("result"), 0);
    EXPECT_TRUE(program.succeeds());
}

}  // namespace
}  // namespace gpupool::test
