// A hostile peer that violates the protocol. In every case the session ends with an error that names the violation, and
// nothing else happens.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <thread>

#include "tests/conformance/channel_fixture.h"
#include "tests/support/transport/inproc/connection.h"

namespace gpupool::testing {
namespace {

using namespace std::chrono_literals;
using wire::FrameHeader;
using wire::FrameType;

using Bytes = std::vector<std::byte>;

// The bytes of a frame whose CRCs are right, as a hostile peer would compute them.
Bytes frame_bytes(FrameHeader header, std::span<const std::byte> payload) {
    header.payload_bytes = static_cast<std::uint32_t>(payload.size());
    header.payload_crc = wire::payload_crc(header.type, payload);
    std::array<std::byte, wire::kHeaderBytes> encoded;
    wire::encode(header, encoded);
    Bytes bytes(encoded.size() + payload.size());
    std::copy(encoded.begin(), encoded.end(), bytes.begin());
    std::copy(payload.begin(), payload.end(), bytes.begin() + encoded.size());
    return bytes;
}

Bytes header_only(const FrameHeader& header) {
    std::array<std::byte, wire::kHeaderBytes> encoded;
    wire::encode(header, encoded);
    return {encoded.begin(), encoded.end()};
}

// Overwrites bytes of a header and corrects its CRC.
Bytes patched(Bytes bytes, std::size_t at, std::uint16_t value) {
    std::memcpy(bytes.data() + at, &value, sizeof(value));
    const std::uint32_t crc = wire::crc32c(std::span<const std::byte>(bytes).first(32));
    std::memcpy(bytes.data() + 32, &crc, sizeof(crc));
    return bytes;
}

// The parameter: whether the channel may resume, which must not help a hostile peer.
class HostilePeer : public ::testing::TestWithParam<bool> {
  protected:
    void SetUp() override {
        auto [here, there] = transport::inproc::make_pair(1u << 20);
        peer_ = std::move(there);
        wire::Limits limits;
        limits.resume = GetParam();
        channel_ = std::make_unique<wire::Channel>(std::move(here), recorder_, limits);
        channel_->start();
    }

    void send(const Bytes& bytes) {
        const transport::ConstBuffer buffers[] = {bytes};
        (void)peer_->send(buffers);  // the channel may have ended already
    }

    // Expects the channel to have ended with this error. Where only the connection was at fault, a resumable channel
    // stays open.
    void expect_end(ErrorCode code, const std::string& words, bool connection_only = false) {
        ASSERT_TRUE(recorder_.wait_closed());
        EXPECT_EQ(recorder_.cause()->code, code) << recorder_.cause()->message;
        EXPECT_NE(recorder_.cause()->message.find(words), std::string::npos) << recorder_.cause()->message;
        EXPECT_EQ(channel_->error().ok(), GetParam() && connection_only);
        EXPECT_TRUE(recorder_.frames().empty());
    }

    Recorder recorder_;
    std::unique_ptr<transport::Connection> peer_;
    std::unique_ptr<wire::Channel> channel_;
};

TEST_P(HostilePeer, WellFormedFrameIsAccepted) {  // shows that the tests below do not fail for another reason
    send(frame_bytes({.sequence = 1, .type = FrameType::control}, pattern(24, 1)));
    ASSERT_TRUE(recorder_.wait_frames(1));
    EXPECT_TRUE(channel_->error().ok());
}

TEST_P(HostilePeer, GarbageStream) {
    send(pattern(64u << 10, 1));
    expect_end(ErrorCode::invalid_input, "not a gpupool frame", true);
}

TEST_P(HostilePeer, WrongMagic) {
    auto bytes = frame_bytes({.sequence = 1, .type = FrameType::control}, {});
    bytes[0] = std::byte{'X'};
    send(bytes);
    expect_end(ErrorCode::invalid_input, "not a gpupool frame", true);
}

TEST_P(HostilePeer, WrongHeaderCrc) {
    auto bytes = frame_bytes({.sequence = 1, .type = FrameType::control}, {});
    bytes[33] ^= std::byte{1};
    send(bytes);
    expect_end(ErrorCode::invalid_input, "header arrived damaged", true);
}

TEST_P(HostilePeer, WrongPayloadCrc) {
    auto bytes = frame_bytes({.sequence = 1, .type = FrameType::control}, pattern(24, 2));
    bytes.back() ^= std::byte{1};
    send(bytes);
    expect_end(ErrorCode::invalid_input, "arrived damaged", true);
}

TEST_P(HostilePeer, UnknownType) {
    send(patched(frame_bytes({.sequence = 1, .type = FrameType::control}, {}), 24, 77));
    expect_end(ErrorCode::unsupported, "frame type 77");
}

TEST_P(HostilePeer, UnknownFlags) {
    send(patched(frame_bytes({.sequence = 1, .type = FrameType::control}, {}), 26, 1));
    expect_end(ErrorCode::unsupported, "flags");
}

TEST_P(HostilePeer, FourGibibytes) {
    send(header_only({.payload_bytes = 0xffffffff, .sequence = 1, .type = FrameType::commands}));
    expect_end(ErrorCode::limit_exceeded, "4294967295");
}

TEST_P(HostilePeer, TruncatedFrame) {
    const auto whole = frame_bytes({.sequence = 1, .type = FrameType::control}, pattern(1000, 3));
    send({whole.begin(), whole.begin() + 500});
    peer_->shutdown();
    expect_end(ErrorCode::closed, "closed the connection", true);
}

TEST_P(HostilePeer, TruncatedHeader) {
    const auto whole = frame_bytes({.sequence = 1, .type = FrameType::control}, {});
    send({whole.begin(), whole.begin() + 17});
    peer_->shutdown();
    expect_end(ErrorCode::closed, "closed the connection", true);
}

TEST_P(HostilePeer, SequenceGap) {
    send(frame_bytes({.sequence = 2, .type = FrameType::control}, {}));
    expect_end(ErrorCode::invalid_input, "frames are missing");
}

TEST_P(HostilePeer, FrameWithoutSequence) {
    send(frame_bytes({.type = FrameType::commands}, pattern(8, 4)));
    expect_end(ErrorCode::invalid_input, "without a sequence");
}

TEST_P(HostilePeer, HandshakeInSession) {
    send(frame_bytes({.sequence = 1, .type = FrameType::hello}, {}));
    expect_end(ErrorCode::invalid_input, "handshake");
}

TEST_P(HostilePeer, AcknowledgementOfUnsentFrame) {
    send(frame_bytes({.acknowledged = 9, .type = FrameType::ack}, {}));
    expect_end(ErrorCode::invalid_input, "acknowledged");
}

TEST_P(HostilePeer, AcknowledgementWithPayload) {
    send(frame_bytes({.type = FrameType::ack}, pattern(8, 5)));
    expect_end(ErrorCode::invalid_input, "acknowledgement");
}

TEST_P(HostilePeer, GoodbyeWithPayload) {
    send(frame_bytes({.sequence = 1, .type = FrameType::goodbye}, pattern(8, 6)));
    expect_end(ErrorCode::invalid_input, "goodbye");
}

TEST_P(HostilePeer, BulkOfUnannouncedTransfer) {
    wire::BulkHeader bulk{5, 0};
    Bytes payload(sizeof(bulk) + 100);
    std::memcpy(payload.data(), &bulk, sizeof(bulk));
    send(frame_bytes({.sequence = 1, .type = FrameType::bulk}, payload));
    expect_end(ErrorCode::invalid_input, "transfer 5");
}

TEST_P(HostilePeer, BulkBeyondItsTransfer) {
    recorder_.expect_transfer(5, 1000);
    wire::BulkHeader bulk{5, 950};
    Bytes payload(sizeof(bulk) + 100);
    std::memcpy(payload.data(), &bulk, sizeof(bulk));
    send(frame_bytes({.sequence = 1, .type = FrameType::bulk}, payload));
    expect_end(ErrorCode::invalid_input, "transfer 5");
}

TEST_P(HostilePeer, BulkWithoutData) {
    send(frame_bytes({.sequence = 1, .type = FrameType::bulk}, pattern(sizeof(wire::BulkHeader), 7)));
    expect_end(ErrorCode::invalid_input, "bulk");
}

TEST_P(HostilePeer, RepeatedFrameIsIgnored) {
    const auto once = frame_bytes({.sequence = 1, .type = FrameType::control}, pattern(24, 8));
    send(once);
    send(once);
    send(frame_bytes({.sequence = 2, .type = FrameType::control}, {}));
    ASSERT_TRUE(recorder_.wait_frames(2));
    EXPECT_EQ(recorder_.frames()[1].payload.size(), 0u);
    EXPECT_EQ(channel_->last_received(), 2u);
}

// Acknowledging frames while they are still being written must not free the memory that the write uses (seen by ASan).
TEST_P(HostilePeer, EarlyAcknowledgement) {
    const auto data = pattern(6u << 20, 9);
    std::thread producer([&] { (void)channel_->append_bulk(1, 0, data); });
    constexpr std::uint64_t kFrameBytes = (1u << 20) + wire::kHeaderBytes + sizeof(wire::BulkHeader);
    std::uint64_t taken = 0;
    Bytes buffer(64u << 10);
    std::uint64_t sequence = 0;
    while (taken < data.size()) {
        auto count = peer_->receive(buffer);
        ASSERT_TRUE(count.ok());
        taken += *count;
        const std::uint64_t begun = (taken + kFrameBytes - 1) / kFrameBytes;
        if (begun > sequence && begun <= 6) {
            sequence = begun;
            send(frame_bytes({.acknowledged = sequence, .type = FrameType::ack}, {}));
        }
    }
    producer.join();
    EXPECT_TRUE(channel_->error().ok());
}

INSTANTIATE_TEST_SUITE_P(Resume, HostilePeer, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "resumable" : "plain"; });

}  // namespace
}  // namespace gpupool::testing
