// What a Channel guarantees while its connection works.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <list>
#include <thread>

#include "common/spin.h"
#include "tests/conformance/channel_fixture.h"

namespace gpupool::testing {
namespace {

using namespace std::chrono_literals;
using wire::Channel;
using wire::FrameType;
using wire::Limits;

class Channels : public ::testing::TestWithParam<Transport> {
  protected:
    [[nodiscard]] static Ends ends() { return GetParam().connected_pair(); }
};

TEST_P(Channels, RecordsArriveInOrder) {
    ChannelPair pair(ends());
    constexpr std::uint64_t kCount = 20'000;
    for (std::uint64_t i = 0; i < kCount; ++i) {
        ASSERT_TRUE(append_word(pair.client, i).ok());
    }
    ASSERT_TRUE(eventually([&] { return pair.server_side.payload_bytes() == kCount * 8; }));
    const auto words = pair.server_side.words();
    for (std::uint64_t i = 0; i < kCount; ++i) {
        ASSERT_EQ(words[i], i);
    }
}

// There is one order for all threads: values of a shared counter that `fill` reads arrive sorted.
TEST_P(Channels, OneOrderAcrossThreads) {
    ChannelPair pair(ends());
    constexpr int kThreads = 4;
    constexpr std::uint64_t kEach = 3000;
    std::uint64_t next = 0;  // guarded by the channel's lock
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
        threads.emplace_back([&] {
            for (std::uint64_t i = 0; i < kEach; ++i) {
                const auto status = pair.client.append(FrameType::commands, 8, [&](std::byte* place) {
                    std::memcpy(place, &next, sizeof(next));
                    ++next;
                });
                ASSERT_TRUE(status.ok());
            }
        });
    }
    for (auto& thread : threads) {
        thread.join();
    }
    ASSERT_TRUE(eventually([&] { return pair.server_side.payload_bytes() == kThreads * kEach * 8; }));
    const auto words = pair.server_side.words();
    for (std::uint64_t i = 0; i < words.size(); ++i) {
        ASSERT_EQ(words[i], i);
    }
}

TEST_P(Channels, KindsKeepTheirOrder) {
    ChannelPair pair(ends());
    ASSERT_TRUE(append_word(pair.client, 1).ok());
    ASSERT_TRUE(append_word(pair.client, 2, FrameType::replies).ok());
    ASSERT_TRUE(append_word(pair.client, 3).ok());
    ASSERT_TRUE(pair.server_side.wait_frames(3));
    const auto frames = pair.server_side.frames();
    EXPECT_EQ(frames[0].type, FrameType::commands);
    EXPECT_EQ(frames[1].type, FrameType::replies);
    EXPECT_EQ(frames[2].type, FrameType::commands);
}

TEST_P(Channels, RecordsArePaddedWithZerosAndAligned) {
    ChannelPair pair(ends());
    for (std::size_t bytes = 1; bytes <= 17; ++bytes) {
        ASSERT_TRUE(pair.client
                        .append(FrameType::commands, bytes,
                                [&](std::byte* place) {
                                    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(place) % 8, 0u);
                                    std::memset(place, 0x5a, bytes);
                                })
                        .ok());
    }
    ASSERT_TRUE(eventually([&] { return pair.server_side.payload_bytes() == 8 * 8 + 8 * 16 + 24; }));
    std::vector<std::byte> all;
    for (const auto& frame : pair.server_side.frames()) {
        all.insert(all.end(), frame.payload.begin(), frame.payload.end());
    }
    std::size_t at = 0;
    for (std::size_t bytes = 1; bytes <= 17; ++bytes) {
        const std::size_t end = at + (bytes + 7) / 8 * 8;
        for (std::size_t i = 0; at < end; ++i, ++at) {
            ASSERT_EQ(all[at], i < bytes ? std::byte{0x5a} : std::byte{0});
        }
    }
}

TEST_P(Channels, LargeRecordsAreNotSplit) {
    ChannelPair pair(ends());
    const auto data = pattern(wire::kMaxPayloadBytes, 2);
    const auto append = [&](std::size_t bytes) {
        return pair.client.append(FrameType::commands, bytes,
                                  [&](std::byte* place) { std::memcpy(place, data.data(), bytes); });
    };
    ASSERT_TRUE(append(600u << 10).ok());
    ASSERT_TRUE(append(wire::kMaxPayloadBytes).ok());
    const auto refused = append(wire::kMaxPayloadBytes + 1);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::limit_exceeded);
    ASSERT_TRUE(pair.server_side.wait_frames(2));
    EXPECT_TRUE(pair.server_side.frames()[1].payload == data);
}

TEST_P(Channels, WritesCarryManyFrames) {
    Limits limits;
    limits.frame_bytes = 1024;
    Ends connections = ends();
    const bool by_callers = connections.first->sends_by_copying() && spinning_pays();
    ChannelPair pair(std::move(connections), limits);
    constexpr std::uint64_t kCount = 50'000;
    for (std::uint64_t i = 0; i < kCount; ++i) {
        ASSERT_TRUE(append_word(pair.client, i).ok());
    }
    ASSERT_TRUE(pair.client.flush().ok());
    const auto counters = pair.client.counters();
    EXPECT_GE(counters.frames_sent, kCount * 8 / 1024);
    if (by_callers) {  // each thread sends its own record while the peer keeps up
        EXPECT_LE(counters.writes, counters.frames_sent);
    } else {
        EXPECT_LT(counters.writes, counters.frames_sent);
    }
    EXPECT_GE(counters.bytes_sent, kCount * 8);
    ASSERT_TRUE(eventually([&] { return pair.server.counters().bytes_received >= kCount * 8; }));
}

// On a transport that copies, the appending thread sends each record at once as long as little is unacknowledged.
// Beyond that the pump sends batches.
TEST(CopyingChannel, BatchesRecordsWhenThePeerLags) {
    constexpr std::uint64_t kCount = 10'000;
    for (const Transport& transport : all_transports()) {
        auto [here, there] = transport.connected_pair();  // the other end is not read
        if (!here->sends_by_copying()) {
            continue;
        }
        Recorder recorder;
        Channel channel(std::move(here), recorder);
        channel.start();
        for (std::uint64_t i = 0; i < kCount; ++i) {
            ASSERT_TRUE(append_word(channel, i).ok());
        }
        ASSERT_TRUE(eventually([&] { return channel.counters().bytes_sent >= kCount * 8; }));
        EXPECT_LT(channel.counters().frames_sent, kCount / 2) << transport.name;
        channel.close(std::chrono::milliseconds(0));
    }
}

TEST_P(Channels, FullChannelBlocksItsProducerUntilThereIsRoom) {
    Limits limits;
    limits.retained_bytes = 64u << 10;
    limits.frame_bytes = 4u << 10;
    ChannelPair pair(ends(), limits);
    pair.server_side.hold();
    constexpr std::uint64_t kCount = 60'000;  // 480 kB, of which the transports buffer a part
    std::atomic<std::uint64_t> appended{0};
    ObservedThread producer([&] {
        const auto payload = pattern(4096, 3);
        for (std::uint64_t i = 0; i < kCount; i += 512) {
            ASSERT_TRUE(append_record(pair.client, payload).ok());
            appended += 512;
        }
    });
    EXPECT_TRUE(producer.blocks()) << "nothing made the producer wait";
    EXPECT_LT(appended.load(), kCount);
    pair.server_side.let_go();
    producer.join();
    ASSERT_TRUE(eventually([&] { return pair.server_side.payload_bytes() == (kCount + 511) / 512 * 4096; }));
}

TEST_P(Channels, BulkArrivesAndReportsOnce) {
    ChannelPair pair(ends());
    const auto data = pattern((5u << 20) + 13, 4);
    const auto& landed = pair.server_side.expect_transfer(7, data.size());
    std::atomic<int> done{0};
    ASSERT_TRUE(pair.client.append_bulk(7, 0, data, [&] { ++done; }).ok());
    ASSERT_TRUE(pair.server_side.wait_bulk_bytes(data.size()));
    EXPECT_TRUE(landed == data);
    ASSERT_TRUE(eventually([&] { return done == 1; }));
    ASSERT_TRUE(pair.client.append_bulk(7, 0, {}, [&] { ++done; }).ok());
    EXPECT_EQ(done, 2) << "nothing to send is done at once";
}

TEST_P(Channels, CopiedBulkReleasesItsSource) {
    ChannelPair pair(ends());
    const auto expected = pattern(3u << 20, 5);
    auto source = expected;
    const auto& landed = pair.server_side.expect_transfer(1, source.size());
    ASSERT_TRUE(pair.client.append_bulk(1, 0, source).ok());
    std::fill(source.begin(), source.end(), std::byte{0});
    ASSERT_TRUE(pair.server_side.wait_bulk_bytes(expected.size()));
    EXPECT_TRUE(landed == expected);
}

TEST_P(Channels, RecordsAreSentBetweenPiecesOfBulk) {
    Limits limits;
    limits.retained_bytes = 256u << 10;
    const auto data = pattern(32u << 20, 6);  // more than the channel buffers, so that its sending may still be under
                                              // way
    ChannelPair pair(ends(), limits);
    std::size_t between = 0, bulk_bytes = 0, records = 0;
    // Two records that arrive before the last piece is appended are enough. On a busy machine the scheduler may not run
    // this thread during one transfer.
    for (std::uint64_t transfer = 1; transfer <= 10 && between <= 1; ++transfer) {
        pair.server_side.expect_transfer(transfer, data.size());
        std::atomic<bool> bulk_appended{false};
        std::thread bulk([&] {
            EXPECT_TRUE(pair.client.append_bulk(transfer, 0, data, [] {}).ok());
            bulk_appended = true;
        });
        for (between = 0; !bulk_appended; ++between) {
            EXPECT_TRUE(append_word(pair.client, 1).ok());
            EXPECT_TRUE(pair.server_side.wait_frames(++records));
        }
        bulk.join();
        bulk_bytes += data.size();
        ASSERT_TRUE(pair.server_side.wait_bulk_bytes(bulk_bytes));
    }
    EXPECT_GT(between, 1u);
}

TEST_P(Channels, BulkBothWaysWithSmallLimits) {
    Limits limits;
    limits.retained_bytes = 128u << 10;
    ChannelPair pair(ends(), limits);
    const auto there = pattern(3u << 20, 7);
    const auto back = pattern(3u << 20, 8);
    const auto& at_server = pair.server_side.expect_transfer(1, there.size());
    const auto& at_client = pair.client_side.expect_transfer(2, back.size());
    std::atomic<int> done{0};
    std::thread client([&] { EXPECT_TRUE(pair.client.append_bulk(1, 0, there, [&] { ++done; }).ok()); });
    std::thread server([&] { EXPECT_TRUE(pair.server.append_bulk(2, 0, back, [&] { ++done; }).ok()); });
    client.join();
    server.join();
    ASSERT_TRUE(pair.server_side.wait_bulk_bytes(there.size()));
    ASSERT_TRUE(pair.client_side.wait_bulk_bytes(back.size()));
    EXPECT_TRUE(at_server == there);
    EXPECT_TRUE(at_client == back);
    EXPECT_TRUE(eventually([&] { return done == 2; }));
}

// The receiver appends nothing, so its acknowledgements alone must make room.
TEST_P(Channels, SilentReceiverAcknowledges) {
    Limits limits;
    limits.retained_bytes = 8u << 10;
    limits.frame_bytes = 1u << 10;
    ChannelPair pair(ends(), limits);
    const auto payload = pattern(3000, 9);
    for (int i = 0; i < 50; ++i) {
        ASSERT_TRUE(append_record(pair.client, payload).ok());
    }
    ASSERT_TRUE(eventually([&] { return pair.server_side.payload_bytes() == 50 * payload.size(); }));
    EXPECT_GT(pair.server.counters().frames_sent, 0u);
}

// One record is too little for an acknowledgement at once, and no outgoing frame can carry one.
TEST_P(Channels, IdleReceiverAcknowledgesSmallAmounts) {
    ChannelPair pair(ends());
    for (std::uint64_t i = 1; i <= 3; ++i) {
        ASSERT_TRUE(append_word(pair.client, i).ok());
        ASSERT_TRUE(eventually([&] { return pair.client.counters().frames_received >= i; }));
    }
}

TEST_P(Channels, FlushSendsEverything) {
    ChannelPair pair(ends());
    for (std::uint64_t i = 0; i < 200; ++i) {
        ASSERT_TRUE(append_word(pair.client, i).ok());
        ASSERT_TRUE(pair.client.flush().ok());
        EXPECT_GE(pair.client.counters().bytes_sent, (i + 1) * 8);
    }
    ASSERT_TRUE(eventually([&] { return pair.server_side.payload_bytes() == 200 * 8; }));
}

TEST_P(Channels, PingPong) {
    ChannelPair pair(ends());
    for (std::size_t i = 1; i <= 200; ++i) {
        ASSERT_TRUE(append_word(pair.client, i).ok());
        ASSERT_TRUE(pair.client.flush().ok());
        ASSERT_TRUE(pair.server_side.wait_frames(i));
        ASSERT_TRUE(append_word(pair.server, i, FrameType::replies).ok());
        ASSERT_TRUE(pair.client_side.wait_frames(i));
    }
    EXPECT_EQ(pair.client.last_received(), 200u);
}

TEST_P(Channels, CloseDeliversPendingRecords) {
    ChannelPair pair(ends());
    constexpr std::uint64_t kCount = 30'000;
    for (std::uint64_t i = 0; i < kCount; ++i) {
        ASSERT_TRUE(append_word(pair.client, i).ok());
    }
    pair.client.close(10s);
    ASSERT_TRUE(pair.server_side.wait_closed());
    EXPECT_EQ(pair.server_side.words().size(), kCount);
    EXPECT_EQ(pair.server_side.cause()->code, ErrorCode::closed);
    EXPECT_NE(pair.server_side.cause()->message.find("ended the session"), std::string::npos);
    EXPECT_FALSE(append_word(pair.client, 1).ok());
    EXPECT_FALSE(pair.client.flush().ok());
    EXPECT_TRUE(eventually([&] { return !append_word(pair.server, 1).ok(); }));
    EXPECT_EQ(pair.client_side.times_closed(), 1u);
    pair.client.close();
    EXPECT_EQ(pair.client_side.times_closed(), 1u);
}

TEST_P(Channels, BothCloseAtOnce) {
    ChannelPair pair(ends());
    std::thread other([&] { pair.server.close(5s); });
    pair.client.close(5s);
    other.join();
    EXPECT_EQ(pair.client_side.times_closed(), 1u);
    EXPECT_EQ(pair.server_side.times_closed(), 1u);
}

TEST_P(Channels, CloseWakesBlockedProducersAndTransfers) {
    Limits limits;
    limits.retained_bytes = 32u << 10;
    ChannelPair pair(ends(), limits);
    const auto data = pattern(4u << 20, 10);
    std::atomic<int> done{0};
    pair.server_side.hold();
    ASSERT_TRUE(append_word(pair.client, 1).ok());  // the server's reader blocks in on_frame
    std::list<ObservedThread> producers;
    for (int i = 0; i < 3; ++i) {
        producers.emplace_back([&] { EXPECT_FALSE(pair.client.append_bulk(1, 0, data, [&] { ++done; }).ok()); });
    }
    for (const auto& producer : producers) {
        EXPECT_TRUE(producer.blocks());
    }
    pair.client.close(10ms);
    for (auto& producer : producers) {
        producer.join();
    }
    EXPECT_EQ(done, 3);
    pair.server_side.let_go();
}

INSTANTIATE_TEST_SUITE_P(All, Channels, ::testing::ValuesIn(channel_transports()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace gpupool::testing
