#include <gtest/gtest.h>

#include <chrono>
#include <vector>

#include "tests/support/transport/faulty/connection.h"
#include "tests/support/transport/inproc/connection.h"

namespace gpupool::transport::faulty {
namespace {

using namespace std::chrono_literals;

class Faulty : public ::testing::Test {
  protected:
    void make(const Faults& faults) {
        auto [here, there] = inproc::make_pair(1u << 20);
        line_ = wrap(std::move(here), faults);
        peer_ = std::move(there);
    }

    Status send(Connection& connection, std::size_t bytes) {
        const std::vector<std::byte> data(bytes);
        const ConstBuffer buffers[] = {data};
        return connection.send(buffers);
    }

    std::unique_ptr<FaultyConnection> line_;
    std::unique_ptr<Connection> peer_;
    std::vector<std::byte> buffer_ = std::vector<std::byte>(1u << 20);
};

TEST_F(Faulty, DelayIsOneWayAndDoesNotAddUp) {
    make({.delay = 20ms});
    const auto before = Clock::now();
    for (int i = 0; i < 10; ++i) {
        ASSERT_TRUE(send(*line_, 100).ok());
    }
    EXPECT_LT(Clock::now() - before, 15ms) << "the sender waits for the line";
    ASSERT_TRUE(receive_exactly(*peer_, MutableBuffer(buffer_).first(1000)).ok());
    const auto took = Clock::now() - before;
    EXPECT_GE(took, 20ms);
    EXPECT_LT(took, 100ms);
}

TEST_F(Faulty, ThrottleBoundsTheRate) {
    make({.throttle_bytes_per_second = 4'000'000});
    const auto before = Clock::now();
    ASSERT_TRUE(send(*line_, 200'000).ok());
    ASSERT_TRUE(receive_exactly(*peer_, MutableBuffer(buffer_).first(200'000)).ok());
    EXPECT_GE(Clock::now() - before, 50ms);
}

TEST_F(Faulty, SplitReceivesInPieces) {
    make({.split_bytes = 10});
    ASSERT_TRUE(send(*peer_, 1000).ok());
    std::size_t pieces = 0;
    for (std::size_t total = 0; total < 1000; ++pieces) {
        const auto count = line_->receive(buffer_);
        ASSERT_TRUE(count.ok());
        ASSERT_LE(*count, 10u);
        total += *count;
    }
    EXPECT_GE(pieces, 100u);
}

TEST_F(Faulty, CutAfterSent) {
    make({.cut_after_sent = 1500});
    ASSERT_TRUE(send(*line_, 1000).ok());
    const auto status = send(*line_, 1000);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::closed);
    ASSERT_TRUE(receive_exactly(*peer_, MutableBuffer(buffer_).first(1500)).ok());
    EXPECT_FALSE(peer_->receive(buffer_).ok());
}

TEST_F(Faulty, CutAfterReceived) {
    make({.cut_after_received = 700});
    ASSERT_TRUE(send(*peer_, 1000).ok());
    ASSERT_TRUE(receive_exactly(*line_, MutableBuffer(buffer_).first(700)).ok());
    const auto end = line_->receive(buffer_);
    ASSERT_FALSE(end.ok());
    EXPECT_EQ(end.error().code, ErrorCode::closed);
    EXPECT_FALSE(send(*line_, 1).ok());
}

TEST_F(Faulty, CorruptsOneBitOfEachByte) {
    make({.corrupt_sent_at = 1234, .corrupt_received_at = 998, .corrupt_bytes = 4});
    const auto changed_at = [&](Connection& from, Connection& to) {
        std::vector<std::size_t> places;
        EXPECT_TRUE(send(from, 1000).ok());
        EXPECT_TRUE(send(from, 1000).ok());
        EXPECT_TRUE(receive_exactly(to, MutableBuffer(buffer_).first(2000)).ok());
        for (std::size_t i = 0; i < 2000; ++i) {
            if (buffer_[i] != std::byte{0}) {
                places.push_back(i);
            }
        }
        return places;
    };
    EXPECT_EQ(changed_at(*line_, *peer_), (std::vector<std::size_t>{1234, 1235, 1236, 1237}));
    EXPECT_EQ(changed_at(*peer_, *line_), (std::vector<std::size_t>{998, 999, 1000, 1001}));
}

TEST_F(Faulty, ShutdownDeliversTheLinesData) {
    make({.delay = 10ms});
    ASSERT_TRUE(send(*line_, 1000).ok());
    line_->shutdown();
    EXPECT_TRUE(receive_exactly(*peer_, MutableBuffer(buffer_).first(1000)).ok());
}

TEST_F(Faulty, CutDropsTheLinesData) {
    make({.delay = 200ms});
    ASSERT_TRUE(send(*line_, 1000).ok());
    const auto before = Clock::now();
    line_->cut();
    EXPECT_FALSE(peer_->receive(buffer_).ok());
    EXPECT_LT(Clock::now() - before, 150ms);
}

}  // namespace
}  // namespace gpupool::transport::faulty
