#include "protocol/wire/handshake_io.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <vector>

#include "tests/support/transport/inproc/connection.h"

namespace gpupool::wire {
namespace {

using namespace std::chrono_literals;
using transport::Clock;
using transport::ConstBuffer;

class HandshakeIo : public ::testing::Test {
  protected:
    void SetUp() override { std::tie(here_, there_) = transport::inproc::make_pair(); }

    void send(std::span<const std::byte> bytes) {
        const ConstBuffer buffers[] = {bytes};
        ASSERT_TRUE(here_->send(buffers).ok());
    }

    std::unique_ptr<transport::Connection> here_;
    std::unique_ptr<transport::Connection> there_;
    const std::vector<std::byte> payload_ = std::vector<std::byte>(1000, std::byte{7});
};

TEST_F(HandshakeIo, FramesCross) {
    ASSERT_TRUE(write_frame(*here_, FrameType::hello, payload_).ok());
    ASSERT_TRUE(write_frame(*here_, FrameType::control, {}).ok());
    const auto first = read_frame(*there_, 1000, 5s);
    ASSERT_TRUE(first.ok()) << first.error().message;
    EXPECT_EQ(first->type, FrameType::hello);
    EXPECT_EQ(first->payload, payload_);
    const auto second = read_frame(*there_, 1000);
    ASSERT_TRUE(second.ok());
    EXPECT_EQ(second->type, FrameType::control);
    EXPECT_TRUE(second->payload.empty());
}

// The next reader of the connection finds every byte after the frame.
TEST_F(HandshakeIo, ReadsOnlyTheFrame) {
    ASSERT_TRUE(write_frame(*here_, FrameType::hello, payload_).ok());
    const std::array rest = {std::byte{1}, std::byte{2}, std::byte{3}};
    send(rest);
    ASSERT_TRUE(read_frame(*there_, 1000).ok());
    std::array<std::byte, 3> received;
    ASSERT_TRUE(transport::receive_exactly(*there_, received).ok());
    EXPECT_EQ(received, rest);
}

TEST_F(HandshakeIo, SizeIsBounded) {
    ASSERT_TRUE(write_frame(*here_, FrameType::hello, payload_).ok());
    const auto frame = read_frame(*there_, 999);
    ASSERT_FALSE(frame.ok());
    EXPECT_EQ(frame.error().code, ErrorCode::limit_exceeded);
    EXPECT_FALSE(write_frame(*here_, FrameType::hello, std::vector<std::byte>(kMaxPayloadBytes + 1)).ok());
}

TEST_F(HandshakeIo, SilentPeerTimesOut) {
    const auto frame = read_frame(*there_, 1000, 20ms);
    ASSERT_FALSE(frame.ok());
    EXPECT_EQ(frame.error().code, ErrorCode::timed_out);
}

// A peer that sends single bytes, and the deadlines that its reader sets. The time is over after some of the bytes.
class DrippingPeer final : public transport::Connection {
  public:
    DrippingPeer(std::span<const std::byte> sent, std::size_t in_time) : sent_(sent), in_time_(in_time) {}

    Result<std::size_t> receive(transport::MutableBuffer buffer) override {
        if (received_ == in_time_ && deadlines.back() != transport::kNoDeadline) {
            return Error{ErrorCode::timed_out, "the time is over"};
        }
        buffer[0] = sent_[received_++];
        return std::size_t{1};
    }
    void set_receive_deadline(Clock::time_point deadline) noexcept override { deadlines.push_back(deadline); }
    Status send(std::span<const ConstBuffer>) override { return {}; }
    void shutdown() noexcept override {}
    [[nodiscard]] std::string peer() const override { return "a dripping peer"; }

    std::vector<Clock::time_point> deadlines;

  private:
    const std::span<const std::byte> sent_;
    const std::size_t in_time_;
    std::size_t received_ = 0;
};

// Single bytes do not extend the timeout: the reader sets one deadline for the whole frame.
TEST_F(HandshakeIo, DrippingPeerTimesOut) {
    std::array<std::byte, kHeaderBytes> header;
    encode({.type = FrameType::hello}, header);
    DrippingPeer slow(header, header.size() - 1), fast(header, header.size());
    const auto before = Clock::now();
    const auto frame = read_frame(slow, 1000, 60ms);
    const auto after = Clock::now();
    ASSERT_FALSE(frame.ok());
    EXPECT_EQ(frame.error().code, ErrorCode::timed_out);
    ASSERT_EQ(slow.deadlines.size(), 2u);
    EXPECT_GE(slow.deadlines[0], before + 60ms);
    EXPECT_LE(slow.deadlines[0], after + 60ms);
    EXPECT_EQ(slow.deadlines[1], transport::kNoDeadline);
    EXPECT_TRUE(read_frame(fast, 1000, 60ms).ok());
    EXPECT_EQ(fast.deadlines.size(), 2u);
}

// A frame that is incomplete when the time is over, on a real connection.
TEST_F(HandshakeIo, PartOfAFrameTimesOut) {
    std::array<std::byte, kHeaderBytes> header;
    encode({.payload_bytes = 8, .type = FrameType::hello}, header);
    send(std::span(header).first(header.size() - 1));
    const auto frame = read_frame(*there_, 1000, 20ms);
    ASSERT_FALSE(frame.ok());
    EXPECT_EQ(frame.error().code, ErrorCode::timed_out);
}

TEST_F(HandshakeIo, DeadlineIsRemovedAfterwards) {
    std::array<std::byte, kHeaderBytes> header;
    encode({.type = FrameType::hello}, header);
    DrippingPeer peer(header, header.size());
    ASSERT_TRUE(read_frame(peer, 1000, 30ms).ok());
    ASSERT_EQ(peer.deadlines.size(), 2u);
    EXPECT_EQ(peer.deadlines[1], transport::kNoDeadline);
}

TEST_F(HandshakeIo, DamageAndSessionFramesAreRefused) {
    std::array<std::byte, kHeaderBytes> header;
    encode({.payload_bytes = 1, .type = FrameType::hello, .payload_crc = 1}, header);
    send(header);
    send(std::array{std::byte{1}});
    auto frame = read_frame(*there_, 1000);
    ASSERT_FALSE(frame.ok());
    EXPECT_NE(frame.error().message.find("damaged"), std::string::npos);

    encode({.sequence = 1, .type = FrameType::hello}, header);
    send(header);
    frame = read_frame(*there_, 1000);
    ASSERT_FALSE(frame.ok());
    EXPECT_EQ(frame.error().code, ErrorCode::invalid_input);

    here_->shutdown();
    frame = read_frame(*there_, 1000);
    ASSERT_FALSE(frame.ok());
    EXPECT_EQ(frame.error().code, ErrorCode::closed);
}

}  // namespace
}  // namespace gpupool::wire
