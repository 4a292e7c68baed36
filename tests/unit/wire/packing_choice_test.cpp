#include "protocol/wire/packing_choice.h"

#include <gtest/gtest.h>

namespace gpupool::wire {
namespace {

using Next = PackingChoice::Next;
using Duration = PackingChoice::Duration;

constexpr std::size_t kPiece = 1u << 20;
constexpr double kGigabit = 8, kLoopback = 0.3;  // nanoseconds per byte

class PackingChoiceTest : public ::testing::Test {
  protected:
    // Records that `wire_bytes` were sent over a network that takes `line_ns` per byte.
    void went(double line_ns, std::size_t wire_bytes = kPiece, bool behind = true) {
        choice_.sent(wire_bytes, behind, Duration(line_ns * static_cast<double>(wire_bytes)));
    }
    void sampled(double packing_ns, double ratio) {
        constexpr auto kBytes = PackingChoice::kSampleBytes;
        choice_.packed(kBytes, static_cast<std::size_t>(ratio * kBytes), Duration(packing_ns * kBytes));
    }
    // Whether the next piece of a transfer with this sample is packed.
    Next after_sample(double packing_ns, double ratio) {
        ++transfer_;
        EXPECT_EQ(choice_.next(transfer_, kPiece), Next::sample);
        sampled(packing_ns, ratio);
        return choice_.next(transfer_, kPiece);
    }

    PackingChoice choice_{CompressionMode::when_it_pays};
    std::uint64_t transfer_ = 0;
};

TEST_F(PackingChoiceTest, UnknownLineGetsUnpackedPieces) {
    for (int i = 0; i < 100; ++i) {
        EXPECT_EQ(choice_.next(1, kPiece), Next::send);
    }
}

TEST_F(PackingChoiceTest, FastLineTakesNoSamples) {
    for (int i = 0; i < 100; ++i) {
        EXPECT_EQ(choice_.next(static_cast<std::uint64_t>(i), kPiece), Next::send);
        went(kLoopback);
    }
}

TEST_F(PackingChoiceTest, SlowLineGetsCompressiblePiecesPacked) {
    went(kGigabit);
    EXPECT_EQ(after_sample(2, 0.5), Next::pack);
    EXPECT_EQ(after_sample(2, 1.0), Next::send);
    EXPECT_EQ(after_sample(2, 0.5), Next::pack);
}

TEST_F(PackingChoiceTest, PackingWithoutAGainIsSkipped) {
    went(kGigabit);
    EXPECT_EQ(after_sample(2, 0.75), Next::send) << "it saves two of eight";
}

TEST_F(PackingChoiceTest, PackingSlowerThanTheLineIsSkipped) {
    went(kGigabit);
    EXPECT_EQ(after_sample(9, 0.01), Next::send);
}

TEST_F(PackingChoiceTest, IncompressibleDataIsNotPacked) {
    went(kGigabit);
    EXPECT_EQ(choice_.next(1, kPiece), Next::sample);
    choice_.packed(PackingChoice::kSampleBytes, 0, Duration(1000));
    EXPECT_EQ(choice_.next(1, kPiece), Next::send);
}

// A transfer takes few samples, which cost almost none of its time.
TEST_F(PackingChoiceTest, SamplesAreFew) {
    went(kGigabit);
    int samples = 0;
    for (int piece = 0; piece < 160; ++piece) {
        if (choice_.next(1, kPiece) == Next::sample) {
            ++samples;
            sampled(2, 1.0);
            EXPECT_EQ(choice_.next(1, kPiece), Next::send);
        }
        went(kGigabit);
    }
    EXPECT_EQ(samples, 10);
}

TEST_F(PackingChoiceTest, SmallPiecesAreNotSampledWithoutAGain) {
    went(kGigabit);
    EXPECT_EQ(choice_.next(1, 64u << 10), Next::send);
    EXPECT_EQ(choice_.next(1, PackingChoice::kSampleBytes), Next::send);
    EXPECT_EQ(choice_.next(2, kPiece), Next::sample);
}

// Later measurements count more, in both directions.
TEST_F(PackingChoiceTest, FollowsTheLinesSpeed) {
    went(kGigabit);
    EXPECT_EQ(after_sample(2, 0.5), Next::pack);
    for (int i = 0; i < 20; ++i) {
        went(kLoopback);
    }
    EXPECT_EQ(choice_.next(++transfer_, kPiece), Next::send);
    for (int i = 0; i < 20; ++i) {
        went(kGigabit);
    }
    EXPECT_EQ(after_sample(2, 0.5), Next::pack);
}

// A line is slow for a while, as every new connection is, and then fast. Packing takes longer than sending, so the line
// is measured from the time of the send.
TEST_F(PackingChoiceTest, LineThatBecomesFastGetsUnpackedPieces) {
    for (int i = 0; i < 5; ++i) {
        went(10 * kGigabit);
    }
    int packed = 0;
    for (int piece = 0; piece < 1000; ++piece) {
        Next next = choice_.next(1, kPiece);
        if (next == Next::sample) {
            sampled(2, 0.35);
            next = choice_.next(1, kPiece);
        }
        packed += next == Next::pack ? 1 : 0;
        went(2 * kLoopback, next == Next::pack ? kPiece / 3 : kPiece, piece % 2 == 0);
    }
    EXPECT_GT(packed, 0);
    EXPECT_LT(packed, 50);
}

// A line that had sent everything is at least that fast; the amount that waited gives no further information.
TEST_F(PackingChoiceTest, LineThatKeepsUpIsNotTakenForSlow) {
    for (int i = 0; i < 20; ++i) {
        went(kGigabit, kPiece, false);
    }
    EXPECT_EQ(choice_.next(1, kPiece), Next::send);
    went(kGigabit);
    EXPECT_EQ(choice_.next(1, kPiece), Next::sample);
    for (int i = 0; i < 100; ++i) {
        went(kLoopback, kPiece, false);
    }
    EXPECT_EQ(choice_.next(2, kPiece), Next::send);
}

// A proxy, for example, may buffer a few pieces at once, which makes the line seem fast.
TEST_F(PackingChoiceTest, FewBufferedPiecesDoNotMakeALineFast) {
    went(10 * kGigabit);
    for (int i = 0; i < 16; ++i) {
        went(kLoopback, kPiece, false);
    }
    EXPECT_EQ(after_sample(2, 0.5), Next::pack);
}

TEST_F(PackingChoiceTest, SmallSendsDoNotCount) {
    for (int i = 0; i < 20; ++i) {
        choice_.sent(1000, true, Duration(1e9));
    }
    EXPECT_EQ(choice_.next(1, kPiece), Next::send);
}

TEST_F(PackingChoiceTest, CompressionModeOverridesTheChoice) {
    PackingChoice never(CompressionMode::never), always(CompressionMode::always);
    for (PackingChoice* const choice : {&never, &always}) {
        choice->sent(kPiece, true, Duration(1e9));
    }
    EXPECT_EQ(never.next(1, kPiece), Next::send);
    EXPECT_EQ(always.next(1, 1), Next::pack);
}

}  // namespace
}  // namespace gpupool::wire
