// What Lanes guarantee: all data arrives over every transport, a waiter can wait for everything sent before, and when a
// lane breaks both ends are notified and no thread blocks for ever.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <random>
#include <thread>

#include "common/compression.h"
#include "tests/conformance/lanes_fixture.h"
#include "tests/support/transport/faulty/connection.h"
#include "tests/support/transport/inproc/connection.h"

namespace gpupool::testing {
namespace {

using namespace std::chrono_literals;
using transport::faulty::Faults;
using wire::Lanes;

constexpr std::size_t kPieceBytes = 24'000;

Ends inproc_pair() {
    return transport::inproc::make_pair(64u << 10);
}

// The faults affect what the client's end sends.
Ends faulty_pair(const Faults& faults) {
    auto [here, there] = inproc_pair();
    return {transport::faulty::wrap(std::move(here), faults), std::move(there)};
}

class EveryLane : public ::testing::TestWithParam<Transport> {
  protected:
    static void carry_data_both_ways(wire::CompressionMode compression);
};

void EveryLane::carry_data_both_ways(wire::CompressionMode compression) {
    constexpr std::size_t kTransfers = 3, kBytes = 700'001, kPieces = (kBytes + kPieceBytes - 1) / kPieceBytes;
    LanePair pair(3, [] { return GetParam().connected_pair(); },
                  {.lanes = 3, .queued_bytes = 4 * kPieceBytes, .compression = compression});
    std::atomic<std::size_t> done{0};
    std::vector<std::thread> threads;
    for (std::uint64_t transfer = 1; transfer <= kTransfers; ++transfer) {
        pair.client_side.expect_transfer(transfer, kBytes);
        pair.server_side.expect_transfer(transfer, kBytes);
        for (Lanes* lanes : {&pair.client, &pair.server}) {
            threads.emplace_back([&done, lanes, transfer] {
                const auto data = pattern(kBytes, transfer);
                std::atomic<std::size_t> own{0};
                EXPECT_TRUE(send_all(*lanes, transfer, data, kPieceBytes, [&] { ++own, ++done; }).ok());
                // the source must stay valid until every piece is done
                EXPECT_TRUE(eventually([&] { return own == kPieces; }));
            });
        }
    }
    for (auto& thread : threads) {
        thread.join();
    }
    EXPECT_EQ(done, 2 * kTransfers * kPieces);
    ASSERT_TRUE(pair.client.wait_landed(pair.server.sent_up_to()));
    ASSERT_TRUE(pair.server.wait_landed(pair.client.sent_up_to()));
    EXPECT_EQ(pair.client.sent_up_to(), kTransfers * kPieces);
    for (std::uint64_t transfer = 1; transfer <= kTransfers; ++transfer) {
        EXPECT_EQ(pair.client_side.data(transfer), pattern(kBytes, transfer));
        EXPECT_EQ(pair.server_side.data(transfer), pattern(kBytes, transfer));
    }
}

TEST_P(EveryLane, CarriesDataBothWaysAtOnce) {
    carry_data_both_ways(wire::CompressionMode::when_it_pays);
}

TEST_P(EveryLane, CarriesPackedDataBothWaysAtOnce) {
    carry_data_both_ways(wire::CompressionMode::always);
}

INSTANTIATE_TEST_SUITE_P(All, EveryLane, ::testing::ValuesIn(channel_transports()),
                         [](const auto& info) { return info.param.name; });

// One lane is slow, because its other end is not read yet. A piece sent early on it arrives last, and a wait for a
// later piece also waits for it.
TEST(LanesTest, WaitingForAPieceWaitsForThoseBeforeIt) {
    constexpr std::size_t kCount = 40;
    constexpr std::size_t kMaxInASlowLane = (64u << 10) / kPieceBytes + 1;
    const auto data = pattern(kCount * kPieceBytes, 1);
    std::atomic<std::size_t> done{0};
    std::atomic<bool> landed{false};
    LanePair pair(0, inproc_pair);
    pair.server_side.expect_transfer(1, data.size());
    const auto send = [&](std::size_t index) {
        const auto offset = index * kPieceBytes;
        return pair.client.send(1, offset, std::span(data).subspan(offset, kPieceBytes), [&] { ++done; }).ok();
    };
    auto [here, there] = inproc_pair();
    ASSERT_TRUE(pair.client.add(0, std::move(here)).ok());
    ASSERT_TRUE(send(0));
    ASSERT_TRUE(eventually([&] { return done == 1; }));  // the slow lane has buffered it
    auto [fast_here, fast_there] = inproc_pair();
    ASSERT_TRUE(pair.client.add(1, std::move(fast_here)).ok());
    ASSERT_TRUE(pair.server.add(1, std::move(fast_there)).ok());
    for (std::size_t i = 1; i < kCount; ++i) {
        ASSERT_TRUE(send(i));
    }
    ASSERT_TRUE(pair.server_side.wait_pieces(kCount - kMaxInASlowLane));
    EXPECT_LT(pair.server_side.pieces(), kCount);

    ObservedThread waits([&] { landed = pair.server.wait_landed(2); });
    EXPECT_TRUE(waits.blocks()) << "the first piece has not landed";
    EXPECT_FALSE(landed);
    EXPECT_TRUE(pair.server.add(0, std::move(there)).ok());
    waits.join();
    EXPECT_TRUE(landed);
    ASSERT_TRUE(pair.server.wait_landed(pair.client.sent_up_to()));
    EXPECT_EQ(pair.server_side.data(1), data);
}

// Counts the bytes sent over lanes.
class SentBytes final : public wire::TrafficObserver {
  public:
    void sent(std::size_t, std::size_t, std::size_t bytes, Moment, Moment) override { bytes_ += bytes; }
    void received(std::size_t, wire::FrameType, std::size_t, Moment, Moment) override {}
    [[nodiscard]] std::size_t bytes() const { return bytes_; }

  private:
    std::atomic<std::size_t> bytes_{0};
};

// The bytes that `data` took on the wire.
std::size_t bytes_on_wire(std::span<const std::byte> data, wire::CompressionMode compression,
                          const std::function<Ends()>& connect) {
    SentBytes counted;
    LanePair pair(1, connect, {.lanes = 1, .compression = compression});
    pair.client.observe(&counted);
    pair.server_side.expect_transfer(1, data.size());
    EXPECT_TRUE(send_all(pair.client, 1, data, kPieceBytes).ok());
    EXPECT_TRUE(pair.server.wait_landed(pair.client.sent_up_to()));
    EXPECT_TRUE(std::ranges::equal(pair.server_side.data(1), data));
    pair.client.close();
    return counted.bytes();
}

TEST(LanesTest, CompressibleDataIsPacked) {
    const std::vector<std::byte> zeros(10 * kPieceBytes);
    EXPECT_LT(bytes_on_wire(zeros, wire::CompressionMode::always, inproc_pair), zeros.size() / 10);
    EXPECT_GT(bytes_on_wire(zeros, wire::CompressionMode::never, inproc_pair), zeros.size());
    std::vector<std::byte> noise(10 * kPieceBytes);
    std::minstd_rand random(1);
    std::ranges::generate(noise, [&] { return static_cast<std::byte>(random() >> 8); });
    EXPECT_GT(bytes_on_wire(noise, wire::CompressionMode::always, inproc_pair), noise.size());
}

// Over shared memory nothing is compressed, whatever the setting.
TEST(LanesTest, CopyingTransportsDoNotPack) {
    const std::vector<std::byte> zeros(10 * kPieceBytes);
    for (const Transport& transport : all_transports()) {
        const bool copies = transport.connected_pair().first->sends_by_copying();
        const auto bytes =
            bytes_on_wire(zeros, wire::CompressionMode::always, [&] { return transport.connected_pair(); });
        EXPECT_EQ(bytes > zeros.size(), copies) << transport.name;
    }
}

TEST(LanesTest, WaitForPieceZeroReturnsAtOnce) {
    LanePair pair(1, inproc_pair);
    EXPECT_EQ(pair.server.sent_up_to(), 0u);
    EXPECT_TRUE(pair.client.wait_landed(0));
}

TEST(LanesTest, FullQueueBlocksItsProducer) {
    const auto data = pattern(20 * kPieceBytes, 1);
    LanePair pair(0, inproc_pair, {.lanes = 1, .queued_bytes = 2 * kPieceBytes});
    auto [here, there] = inproc_pair();  // the other end is not read
    ASSERT_TRUE(pair.client.add(0, std::move(here)).ok());
    std::atomic<std::size_t> done{0};
    std::atomic<bool> back{false};
    ObservedThread producer([&] {
        EXPECT_FALSE(send_all(pair.client, 1, data, kPieceBytes, [&] { ++done; }).ok());
        back = true;
    });
    EXPECT_TRUE(producer.blocks());
    EXPECT_FALSE(back);
    EXPECT_LE(pair.client.sent_up_to(), 2 + (64u << 10) / kPieceBytes + 1);
    pair.client.end({ErrorCode::closed, "over"});
    producer.join();
    pair.client.close();
    EXPECT_EQ(done, pair.client.sent_up_to() + 1);  // plus the `done` of the piece that was refused
}

TEST(LanesTest, BrokenLaneEndsAllLanes) {
    Faults cut;
    cut.cut_after_sent = 300'000;
    std::atomic<std::size_t> made{0};
    const auto data = pattern(8u << 20, 1);
    LanePair pair(3, [&] { return made++ == 1 ? faulty_pair(cut) : inproc_pair(); },
                  {.lanes = 3, .queued_bytes = 1u << 20});
    pair.server_side.expect_transfer(1, data.size());
    std::atomic<std::size_t> done{0};
    std::size_t sent = 0;
    Status status;
    while (status) {
        const std::size_t offset = sent++ % 300 * kPieceBytes;
        status = pair.client.send(1, offset, std::span(data).subspan(offset, kPieceBytes), [&] { ++done; });
    }
    EXPECT_TRUE(pair.client_side.wait_ended());
    EXPECT_TRUE(pair.server_side.wait_ended());
    // The end that detects the break first names the broken lane.
    const auto causes = pair.client_side.cause()->message + pair.server_side.cause()->message;
    EXPECT_NE(causes.find("lane 1"), std::string::npos) << causes;
    EXPECT_EQ(status.error().message, pair.client_side.cause()->message);
    EXPECT_FALSE(pair.server.wait_landed(pair.client.sent_up_to() + 1));
    pair.client.close();
    pair.server.close();
    EXPECT_EQ(done, sent);
    EXPECT_EQ(pair.server_side.in_progress(), 0u);
    EXPECT_EQ(pair.client_side.times_ended(), 1u);
    EXPECT_EQ(pair.server_side.times_ended(), 1u);
    EXPECT_EQ(pair.client.count(), 0u);
    EXPECT_FALSE(pair.client.take(Lanes::kMaxPieceBytes));
}

// Damages each byte of the second piece's two headers in its own run.
TEST(LanesTest, DamagedHeaderEndsAllLanesAndItsPieceIsDropped) {
    constexpr std::size_t kHeadBytes = wire::kHeaderBytes + sizeof(wire::BulkHeader);
    for (const std::size_t at : {5u, 12u, 20u, 30u, 33u, 40u, 47u, 48u, 55u}) {
        Faults damage;
        damage.corrupt_sent_at = kHeadBytes + kPieceBytes + at;
        const auto data = pattern(4 * kPieceBytes, 1);
        LanePair pair(1, [&] { return faulty_pair(damage); });
        pair.server_side.expect_transfer(1, data.size());
        (void)send_all(pair.client, 1, data, kPieceBytes);
        ASSERT_TRUE(pair.server_side.wait_ended()) << "byte " << at;
        EXPECT_NE(pair.server_side.cause()->message.find("CRC"), std::string::npos)
            << "byte " << at << ": " << pair.server_side.cause()->message;
        EXPECT_EQ(pair.server_side.pieces(), 1u);
        EXPECT_EQ(pair.server_side.lost(), 0u) << "a damaged header was believed";
        EXPECT_TRUE(pair.client_side.wait_ended());
    }
}

// Lanes do not check data, which may change while it is sent if the application writes to it. It arrives as it was
// read.
TEST(LanesTest, DamagedDataArrivesUnchecked) {
    Faults change;
    change.corrupt_sent_at = 30'000;  // in the second piece's data
    const auto data = pattern(4 * kPieceBytes, 1);
    LanePair pair(1, [&] { return faulty_pair(change); });
    pair.server_side.expect_transfer(1, data.size());
    ASSERT_TRUE(send_all(pair.client, 1, data, kPieceBytes).ok());
    ASSERT_TRUE(pair.server.wait_landed(pair.client.sent_up_to()));
    EXPECT_NE(pair.server_side.data(1), data);
    EXPECT_TRUE(pair.server.error().ok());
}

TEST(LanesTest, CloseWakesWaiters) {
    LanePair pair(2, inproc_pair);
    ObservedThread waits([&] { EXPECT_FALSE(pair.server.wait_landed(5)); });
    EXPECT_TRUE(waits.blocks());
    pair.server.close();
    waits.join();
    EXPECT_TRUE(pair.client_side.wait_ended());
    EXPECT_EQ(pair.server_side.times_ended(), 0u);
    EXPECT_FALSE(pair.server.add(5, inproc_pair().first).ok());
}

TEST(LanesTest, LaneIndexIsUniqueAndBelowTheLimit) {
    const auto data = pattern(kPieceBytes, 1);
    LanePair pair(2, inproc_pair, {.lanes = 3});
    EXPECT_FALSE(pair.server.add(1, inproc_pair().first).ok());
    EXPECT_FALSE(pair.server.add(3, inproc_pair().first).ok());
    EXPECT_FALSE(pair.server.admits(3).ok());
    EXPECT_TRUE(pair.server.admits(2).ok());
    EXPECT_EQ(pair.server.count(), 2u);
    pair.server_side.expect_transfer(1, data.size());
    ASSERT_TRUE(send_all(pair.client, 1, data, kPieceBytes).ok());
    EXPECT_TRUE(pair.server.wait_landed(1));
}

// A hostile peer on a lane. In each case all lanes end with an error that names the violation.
class HostileLane : public ::testing::Test {
  protected:
    void SetUp() override {
        auto [ours, theirs] = inproc_pair();
        peer_ = std::move(theirs);
        ASSERT_TRUE(lanes_.add(0, std::move(ours)).ok());
        recorder_.expect_transfer(1, 1000);
    }
    void send(wire::FrameHeader header, std::uint64_t transfer, std::uint64_t offset, std::size_t bytes) {
        std::vector<std::byte> payload(sizeof(wire::BulkHeader) + bytes);
        const wire::BulkHeader bulk{transfer, offset};
        std::memcpy(payload.data(), &bulk, sizeof(bulk));
        send_frame(header, payload);
    }
    void expect_end(const std::string& why) {
        ASSERT_TRUE(recorder_.wait_ended());
        EXPECT_NE(recorder_.cause()->message.find(why), std::string::npos) << recorder_.cause()->message;
        lanes_.close();
        EXPECT_EQ(recorder_.in_progress(), 0u);
    }
    // Sends a packed piece whose header claims `bytes` after unpacking.
    void send_packed(std::uint64_t transfer, std::uint64_t bytes, std::span<const std::byte> packed) {
        std::vector<std::byte> payload(sizeof(wire::PackedHeader) + packed.size());
        const wire::PackedHeader head{{transfer, 0}, bytes};
        std::memcpy(payload.data(), &head, sizeof(head));
        std::ranges::copy(packed, payload.begin() + sizeof(head));
        send_frame({.sequence = 1, .type = wire::FrameType::packed}, payload);
    }
    // Fills in the payload's true size unless the header already has one.
    void send_frame(wire::FrameHeader header, std::span<const std::byte> payload) {
        if (header.payload_bytes == 0) {
            header.payload_bytes = static_cast<std::uint32_t>(payload.size());
        }
        header.payload_crc = wire::payload_crc(header.type, payload);
        std::array<std::byte, wire::kHeaderBytes> head;
        wire::encode(header, head);
        const transport::ConstBuffer buffers[] = {head, payload};
        (void)peer_->send(buffers);
    }
    static wire::FrameHeader bulk(std::uint64_t number) { return {.sequence = number, .type = wire::FrameType::bulk}; }

    LaneRecorder recorder_;
    Lanes lanes_{recorder_, {}};
    std::unique_ptr<transport::Connection> peer_;
};

TEST_F(HostileLane, UnannouncedTransfer) {
    send(bulk(1), 2, 0, 100);
    expect_end("unexpected piece");
}

TEST_F(HostileLane, DataBeyondTheEnd) {
    send(bulk(1), 1, 950, 100);
    expect_end("unexpected piece");
}

TEST_F(HostileLane, RepeatedPieceNumber) {
    send(bulk(1), 1, 0, 100);
    send(bulk(1), 1, 100, 100);
    expect_end("twice");
}

TEST_F(HostileLane, MissingPieceNumber) {
    send(bulk(0), 1, 0, 100);
    expect_end("twice");
}

TEST_F(HostileLane, OtherFrameThanBulk) {
    send({.sequence = 1, .type = wire::FrameType::replies}, 1, 0, 100);
    expect_end("only bulk data");
}

TEST_F(HostileLane, Acknowledgement) {
    send({.sequence = 1, .acknowledged = 1, .type = wire::FrameType::bulk}, 1, 0, 100);
    expect_end("only bulk data");
}

TEST_F(HostileLane, OversizedPiece) {
    recorder_.expect_transfer(1, 4u << 20);
    auto header = bulk(1);
    header.payload_bytes = static_cast<std::uint32_t>(Lanes::kMaxPieceBytes + sizeof(wire::BulkHeader) + 1);
    send(header, 1, 0, 100);
    expect_end("a piece's frame");
}

TEST_F(HostileLane, PieceWithoutData) {
    send(bulk(1), 1, 0, 0);
    expect_end("a piece's frame");
}

TEST_F(HostileLane, TruncatedPiece) {
    auto header = bulk(1);
    header.payload_bytes = 500;
    send(header, 1, 0, 100);
    peer_->shutdown();
    expect_end("lane 0");
    EXPECT_EQ(recorder_.lost(), 1u);
}

TEST_F(HostileLane, PackedPieceWithWrongSize) {
    const auto packed = *compress(std::vector<std::byte>(900));
    send_packed(1, 900, packed);
    ASSERT_TRUE(recorder_.wait_pieces(1));
    for (const std::size_t bytes : {899u, 901u}) {
        LaneRecorder recorder;
        Lanes lanes(recorder, {});
        auto [ours, theirs] = inproc_pair();
        peer_ = std::move(theirs);
        recorder.expect_transfer(1, 1000);
        ASSERT_TRUE(lanes.add(0, std::move(ours)).ok());
        send_packed(1, bytes, packed);
        ASSERT_TRUE(recorder.wait_ended());
        EXPECT_NE(recorder.cause()->message.find("does not decompress"), std::string::npos)
            << recorder.cause()->message;
        EXPECT_EQ(recorder.lost(), 0u) << "data was written";
        lanes.close();
    }
}

TEST_F(HostileLane, UnpackablePiece) {
    send_packed(1, 500, std::vector<std::byte>(100, std::byte{7}));
    expect_end("does not decompress");
}

TEST_F(HostileLane, PackedPieceOfUnannouncedTransfer) {
    send_packed(2, 900, *compress(std::vector<std::byte>(900)));
    expect_end("unexpected piece");
}

TEST_F(HostileLane, PackedPieceOfOversizedData) {
    const std::size_t bytes = Lanes::kMaxPieceBytes + 1;
    recorder_.expect_transfer(1, bytes);
    send_packed(1, bytes, *compress(std::vector<std::byte>(bytes)));
    expect_end("a packed piece of");
}

TEST_F(HostileLane, PackedPieceOfEmptyData) {
    send_packed(1, 0, std::vector<std::byte>(8));
    expect_end("a packed piece of");
}

TEST_F(HostileLane, EndlessGapsInPieceNumbers) {
    std::thread reads_nothing([this] {
        for (std::uint64_t number = 2; number < 200'000 && recorder_.times_ended() == 0; number += 2) {
            send(bulk(number), 1, 0, 8);
        }
    });
    EXPECT_TRUE(recorder_.wait_ended());
    reads_nothing.join();
    expect_end("out of order");
}

}  // namespace
}  // namespace gpupool::testing
