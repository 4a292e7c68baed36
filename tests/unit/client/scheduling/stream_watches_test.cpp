// Repeated queries of a stream that the client answers without a round trip.

#include "client/core/scheduling/stream_watches.h"

#include <gtest/gtest.h>

namespace gpupool::client {
namespace {

using Known = StreamWatches::Known;

constexpr StreamKey kStream{8, 0}, kOther{9, 0};

class StreamWatchesTest : public ::testing::Test {
  protected:
    // The worker answers "busy" until the client asks it to watch the stream. No other records arrive.
    void begin_watch() {
        EXPECT_FALSE(watches.answered(kStream, false, ++received));
        EXPECT_FALSE(watches.answered(kStream, false, ++received));
        EXPECT_TRUE(watches.answered(kStream, false, ++received));
    }

    StreamWatches watches;
    std::uint64_t received = 10;
};

TEST_F(StreamWatchesTest, FirstQueriesGoToTheWorker) {
    EXPECT_EQ(watches.known(kStream, 1, received), Known::unknown);
    EXPECT_FALSE(watches.answered(kStream, false, ++received));
    EXPECT_FALSE(watches.answered(kStream, false, ++received));
    EXPECT_EQ(watches.known(kStream, 1, received), Known::unknown);
    EXPECT_FALSE(watches.answered(kStream, true, ++received));
    EXPECT_FALSE(watches.answered(kStream, false, ++received)) << "the count starts again";
}

TEST_F(StreamWatchesTest, PendingIsValidUntilAnyRecordArrives) {
    begin_watch();
    EXPECT_EQ(watches.known(kStream, 1, received), Known::pending);
    EXPECT_EQ(watches.known(kStream, 2, received), Known::pending) << "more work leaves it busy";
    EXPECT_EQ(watches.known(kOther, 1, received), Known::unknown);
    EXPECT_EQ(watches.known(kStream, 1, received + 1), Known::unknown) << "a new record may report its completion";
    EXPECT_FALSE(watches.answered(kStream, false, received + 2)) << "the worker watches it already";
    EXPECT_EQ(watches.known(kStream, 1, received + 2), Known::pending);
}

TEST_F(StreamWatchesTest, CompleteIsValidUntilAnyCommandIsSent) {
    begin_watch();
    watches.note_complete(kStream, 7, true);
    EXPECT_EQ(watches.known(kStream, 7, received + 1), Known::complete);
    EXPECT_EQ(watches.known(kStream, 8, received + 1), Known::unknown);
    begin_watch();
}

// A query has reported the stream complete, and the program gives it more work. The notice of the earlier watch must
// not count for it.
TEST_F(StreamWatchesTest, EarlierWatchsNoticeDoesNotEndALaterOne) {
    begin_watch();
    EXPECT_FALSE(watches.answered(kStream, true, ++received));
    for (int i = 0; i < 5; ++i) {
        EXPECT_FALSE(watches.answered(kStream, false, ++received)) << "the first watch has not ended";
    }
    watches.note_complete(kStream, 7, true);
    EXPECT_EQ(watches.known(kStream, 9, received), Known::unknown);
}

TEST_F(StreamWatchesTest, FailuresAndForgottenStreamsGoToTheWorker) {
    begin_watch();
    watches.note_complete(kStream, 7, false);
    EXPECT_EQ(watches.known(kStream, 7, received), Known::unknown);
    begin_watch();
    watches.forget(kStream);
    watches.note_complete(kStream, 7, true);
    EXPECT_EQ(watches.known(kStream, 7, received), Known::unknown) << "it was destroyed";
}

}  // namespace
}  // namespace gpupool::client
