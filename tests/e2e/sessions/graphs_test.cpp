// Graphs that are built and changed without waiting for the server are what natively they would be.

#include "tests/e2e/sessions/sessions.h"

namespace gpupool::test {
namespace {

class SessionGraphs : public SessionTest {
  protected:
    void expect_word(const char* mode, long long word) {
        for (const char* transport : {"tcp", "shm"}) {
            Program program(*daemon_, session_program(mode), {std::string("GPUPOOL_TRANSPORT=") + transport});
            EXPECT_EQ(program.number("word"), word) << transport << program.errors();
            EXPECT_TRUE(program.succeeds()) << transport;
        }
    }
};

// Who makes them is told to wait, as natively who launches graphs is when the driver's queue is full.
TEST_F(SessionGraphs, ChangesWithoutEndWaitInTheProgram) {
    expect_word("graph_changes", 64 * (300 * 301 / 2));  // each launch adds one more
}

// No more than the driver's queue takes waits: then nobody may have to wait for changes, which natively are made at
// once.
TEST_F(SessionGraphs, ChangesMayBeWhatComesBeforeTheLaunchesGo) {
    expect_word("graph_gate", 2 * 490 + 490 * 31);
}

TEST_F(SessionGraphs, AnEventMayGoOnceTheCallThatNamedItIsBack) {
    expect_word("graph_event", 9 * 300);
}

TEST_F(SessionGraphs, AChangeThatWaitsHoldsUpNoOtherGraph) {
    expect_word("graph_unrelated", 2 * 500 + 499 + 10);
}

TEST_F(SessionGraphs, AnEventOfAContextThatHasEndedIsRefused) {
    Program program(*daemon_, session_program("graph_of_ended"));
    EXPECT_GT(program.number("result"), 0);
    EXPECT_TRUE(program.succeeds());
}

}  // namespace
}  // namespace gpupool::test
