#include "protocol/wire/outbox.h"

#include <gtest/gtest.h>

#include <cstring>

namespace gpupool::wire {
namespace {

constexpr std::size_t kFrameBytes = 1024;

class OutboxTest : public ::testing::Test {
  protected:
    void add_word(std::uint64_t word) { std::memcpy(outbox_.add_record(FrameType::commands, 8), &word, 8); }

    void add_transfer(int& done) {
        OutFrame frame;
        frame.type = FrameType::bulk;
        frame.data = bytes_;
        frame.bytes = sizeof(bytes_);
        frame.transfer = std::make_shared<Transfer>([&done] { ++done; });
        outbox_.add_frame(std::move(frame));
    }

    std::size_t collect(std::size_t frames = 64, std::size_t bytes = 1u << 20) {
        outbox_.collect(batch_, frames, bytes);
        return batch_.size();
    }

    void done(bool delivered, bool drop = false) {
        ReleasedFrames released;
        outbox_.batch_done(delivered, drop, released);
    }

    bool acknowledge(std::uint64_t sequence) {
        ReleasedFrames released;
        return outbox_.acknowledge(sequence, released);
    }

    Outbox outbox_{kFrameBytes};
    std::vector<OutFrame> batch_;
    std::byte bytes_[100] = {};
};

TEST_F(OutboxTest, RecordsShareAFrameUntilItIsFullOrCollected) {
    for (std::uint64_t i = 0; i < kFrameBytes / 8; ++i) {
        add_word(i);
    }
    EXPECT_EQ(outbox_.last_sequence(), 1u);
    add_word(0);
    EXPECT_EQ(outbox_.last_sequence(), 2u);
    EXPECT_EQ(collect(), 2u);
    EXPECT_EQ(batch_[0].bytes, kFrameBytes);
    EXPECT_EQ(batch_[1].bytes, 8u);
    add_word(1);  // the second frame is being sent
    EXPECT_EQ(outbox_.last_sequence(), 3u);
    done(true);
    EXPECT_TRUE(outbox_.has_unsent());
}

TEST_F(OutboxTest, FramesStayUntilAcknowledged) {
    add_word(1);
    collect();
    done(true);
    EXPECT_FALSE(outbox_.fits(kFrameBytes, kFrameBytes, 1000));
    EXPECT_TRUE(acknowledge(1));
    EXPECT_TRUE(outbox_.fits(kFrameBytes, kFrameBytes, 1000));
    EXPECT_FALSE(acknowledge(2)) << "never sent";
}

TEST_F(OutboxTest, OversizedRecordGetsItsOwnFrame) {
    EXPECT_TRUE(outbox_.fits(1u << 20, 1000, 1000));
    add_word(1);
    EXPECT_FALSE(outbox_.fits(1u << 20, 1000, 1000));
}

TEST_F(OutboxTest, AcknowledgedFramesOfARunningBatchStay) {
    int finished = 0;
    add_transfer(finished);
    collect();
    EXPECT_TRUE(acknowledge(1));
    EXPECT_EQ(finished, 0) << "its memory is being sent";
    done(true);
    EXPECT_EQ(finished, 1);
}

TEST_F(OutboxTest, TransfersEndWhenSentOrWhenAcknowledged) {
    int finished = 0;
    add_transfer(finished);
    collect();
    done(true, true);
    EXPECT_EQ(finished, 1);
    EXPECT_TRUE(acknowledge(1));
    EXPECT_EQ(finished, 1);

    add_transfer(finished);
    collect();
    done(true, false);
    EXPECT_EQ(finished, 1);
    EXPECT_TRUE(acknowledge(2));
    EXPECT_EQ(finished, 2);
}

TEST_F(OutboxTest, RewindResendsUnreceivedFrames) {
    for (std::uint64_t i = 0; i < 5 * kFrameBytes / 8; ++i) {
        add_word(i);
    }
    EXPECT_EQ(collect(3), 3u);
    done(true);
    EXPECT_EQ(collect(1), 1u);
    done(false);
    EXPECT_EQ(outbox_.sent(), 3u);
    EXPECT_TRUE(acknowledge(2));
    outbox_.rewind();
    EXPECT_EQ(collect(), 3u);
    EXPECT_EQ(batch_.front().sequence, 3u);
    std::uint64_t word = 0;
    std::memcpy(&word, batch_.front().data, 8);
    EXPECT_EQ(word, 2 * kFrameBytes / 8);
    done(true);
}

TEST_F(OutboxTest, BatchesAreBounded) {
    for (std::uint64_t i = 0; i < 5 * kFrameBytes / 8; ++i) {
        add_word(i);
    }
    EXPECT_EQ(collect(64, 2 * kFrameBytes), 2u);
    done(true);
    EXPECT_EQ(collect(64, 1), 1u) << "one frame goes, however large";
    done(true);
}

TEST_F(OutboxTest, ClearFinishesEverything) {
    int finished = 0;
    add_transfer(finished);
    add_word(1);
    add_transfer(finished);
    {
        ReleasedFrames released;
        outbox_.clear(released);
    }
    EXPECT_EQ(finished, 2);
    EXPECT_FALSE(outbox_.has_unsent());
}

TEST_F(OutboxTest, CountsRecordsUntilTheyAreAcknowledged) {
    add_word(1);
    add_word(2);
    EXPECT_TRUE(outbox_.fits(8, 1u << 20, 3));
    EXPECT_FALSE(outbox_.fits(8, 1u << 20, 2));
    collect();
    done(true);
    EXPECT_FALSE(outbox_.fits(8, 1u << 20, 2));
    add_word(3);
    EXPECT_TRUE(acknowledge(1));
    EXPECT_TRUE(outbox_.fits(8, 1u << 20, 2));
    EXPECT_FALSE(outbox_.fits(8, 1u << 20, 1));
}

TEST_F(OutboxTest, UrgentRecordsOvertakeUnsentDataInOrder) {
    int ended = 0;
    const auto add_urgent = [&](std::uint64_t word) {
        std::memcpy(outbox_.add_urgent_record(FrameType::replies, 8), &word, 8);
    };
    add_word(1);
    add_transfer(ended);  // being sent
    EXPECT_EQ(collect(), 2u);
    add_transfer(ended);
    add_word(2);
    add_urgent(3);
    add_urgent(4);
    EXPECT_EQ(outbox_.last_sequence(), 6u);
    EXPECT_EQ(outbox_.overtakes(), 2u);
    done(true);
    EXPECT_EQ(collect(), 4u);
    const auto word = [&](std::size_t frame) {
        std::uint64_t value = 0;
        std::memcpy(&value, batch_[frame].data, sizeof value);
        return value;
    };
    for (std::size_t i = 0; i < batch_.size(); ++i) {
        EXPECT_EQ(batch_[i].sequence, 3 + i);
    }
    EXPECT_EQ(word(0), 3u);
    EXPECT_EQ(word(1), 4u);
    EXPECT_EQ(batch_[2].type, FrameType::bulk);
    EXPECT_EQ(word(3), 2u);
    done(true);
    EXPECT_TRUE(acknowledge(6));
    EXPECT_EQ(ended, 2);
    EXPECT_EQ(outbox_.retained(), 0u);
}

TEST_F(OutboxTest, UrgentRecordsShareAFrameWithoutPendingData) {
    add_word(1);
    const std::uint64_t word = 2;
    std::memcpy(outbox_.add_urgent_record(FrameType::commands, 8), &word, 8);
    EXPECT_EQ(outbox_.last_sequence(), 1u);
    EXPECT_EQ(outbox_.overtakes(), 0u);
}

}  // namespace
}  // namespace gpupool::wire
