#include "protocol/wire/handshake_io.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <thread>

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

// Single bytes do not extend the timeout.
TEST_F(HandshakeIo, DrippingPeerTimesOut) {
    std::thread peer([&] {
        std::array<std::byte, kHeaderBytes> header;
        encode({.payload_bytes = 8, .type = FrameType::hello}, header);
        for (const auto& byte : header) {
            const ConstBuffer buffers[] = {{&byte, 1}};
            if (!here_->send(buffers).ok()) {
                return;
            }
            std::this_thread::sleep_for(10ms);
        }
    });
    const auto before = Clock::now();
    const auto frame = read_frame(*there_, 1000, 60ms);
    EXPECT_LT(Clock::now() - before, 300ms);
    ASSERT_FALSE(frame.ok());
    EXPECT_EQ(frame.error().code, ErrorCode::timed_out);
    there_->shutdown();
    peer.join();
}

TEST_F(HandshakeIo, DeadlineIsRemovedAfterwards) {
    ASSERT_TRUE(write_frame(*here_, FrameType::hello, payload_).ok());
    ASSERT_TRUE(read_frame(*there_, 1000, 30ms).ok());
    std::thread peer([&] {
        std::this_thread::sleep_for(60ms);
        send(std::array{std::byte{1}});
    });
    std::byte byte;
    EXPECT_TRUE(there_->receive({&byte, 1}).ok());
    peer.join();
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
