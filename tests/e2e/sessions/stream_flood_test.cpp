// More streams, one after the other, than a session may have at a time. Labelled long, because each stream costs the
// software GPU a thread.

#include "tests/e2e/sessions/sessions.h"

namespace gpupool::test {
namespace {

class StreamFlood : public SessionTest {};

TEST_F(StreamFlood, LosesNoWork) {
    Program program(*daemon_, session_program("stream_flood"));
    EXPECT_TRUE(program.succeeds(milliseconds(300000)));
}

}  // namespace
}  // namespace gpupool::test
