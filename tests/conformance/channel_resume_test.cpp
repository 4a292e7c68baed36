// Broken connections. Without resumption the session ends at both ends; with it no frame is lost or duplicated.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <random>
#include <thread>

#include "tests/conformance/channel_fixture.h"
#include "tests/support/transport/faulty/connection.h"

namespace gpupool::testing {
namespace {

using namespace std::chrono_literals;
using transport::faulty::Faults;
using transport::faulty::FaultyConnection;
using wire::Channel;
using wire::FrameType;
using wire::Limits;

class BrokenChannels : public ::testing::TestWithParam<Transport> {
  protected:
    // A connected pair whose first end misbehaves as `faults` says.
    [[nodiscard]] static Ends faulty_ends(const Faults& faults) {
        auto ends = GetParam().connected_pair();
        ends.first = transport::faulty::wrap(std::move(ends.first), faults);
        return ends;
    }
};

TEST_P(BrokenChannels, CutWithoutResumeEndsBoth) {
    auto ends = GetParam().connected_pair();
    auto owned = transport::faulty::wrap(std::move(ends.first), {});
    FaultyConnection& line = *owned;
    ends.first = std::move(owned);
    ChannelPair pair(std::move(ends));
    ASSERT_TRUE(append_word(pair.client, 1).ok());
    ASSERT_TRUE(pair.server_side.wait_frames(1));
    line.cut();
    ASSERT_TRUE(pair.client_side.wait_closed());
    ASSERT_TRUE(pair.server_side.wait_closed());
    EXPECT_FALSE(pair.client.error().ok());
    EXPECT_FALSE(pair.server.error().ok());
    const auto status = append_word(pair.server, 1);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().message, pair.server_side.cause()->message) << "the first cause is not what is reported";
    EXPECT_FALSE(pair.client.attach(GetParam().connected_pair().first, 0).ok());
}

TEST_P(BrokenChannels, DoneRunsOnceWhenCut) {
    Faults faults;
    faults.cut_after_sent = 600u << 10;
    ChannelPair pair(faulty_ends(faults));
    const auto data = pattern(8u << 20, 1);
    pair.server_side.expect_transfer(1, data.size());
    std::atomic<int> done{0};
    (void)pair.client.append_bulk(1, 0, data, [&] { ++done; });
    ASSERT_TRUE(pair.client_side.wait_closed());
    EXPECT_TRUE(eventually([&] { return done > 0; }));
    pair.client.close();
    EXPECT_EQ(done, 1);
}

// The receiver detects a flipped bit anywhere in a frame of records (magic, header, payload) and ends the session.
TEST_P(BrokenChannels, CorruptionIsNoticed) {
    for (const std::uint64_t at : {0u, 5u, 12u, 20u, 24u, 27u, 30u, 33u, 38u, 40u, 47u}) {
        Faults faults;
        faults.corrupt_sent_at = at;
        ChannelPair pair(faulty_ends(faults));
        ASSERT_TRUE(append_word(pair.client, 42).ok());
        ASSERT_TRUE(pair.server_side.wait_closed()) << "byte " << at;
        EXPECT_EQ(pair.server_side.cause()->code, ErrorCode::invalid_input) << pair.server_side.cause()->message;
        EXPECT_TRUE(pair.server_side.frames().empty());
        ASSERT_TRUE(pair.client_side.wait_closed());
    }
}

// The headers of a bulk frame say which transfer and offset the data belongs to. The BulkHeader begins at byte 40.
TEST_P(BrokenChannels, CorruptHeadersOfBulkDataAreNoticed) {
    for (const std::uint64_t at : {5u, 12u, 24u, 30u, 33u, 40u, 47u, 48u, 55u}) {
        Faults faults;
        faults.corrupt_sent_at = at;
        ChannelPair pair(faulty_ends(faults));
        const auto data = pattern(1u << 20, 2);
        const auto& landed = pair.server_side.expect_transfer(1, data.size());
        (void)pair.client.append_bulk(1, 0, data);
        ASSERT_TRUE(pair.server_side.wait_closed()) << "byte " << at;
        EXPECT_EQ(pair.server_side.cause()->code, ErrorCode::invalid_input) << pair.server_side.cause()->message;
        EXPECT_NE(pair.server_side.cause()->message.find("damaged"), std::string::npos)
            << "byte " << at << ": " << pair.server_side.cause()->message;
        EXPECT_FALSE(pair.server.error().ok());
        EXPECT_EQ(landed, std::vector<std::byte>(data.size())) << "byte " << at;
    }
}

// No CRC covers bulk data; the connection protects it (frame.h).
TEST_P(BrokenChannels, DamagedBulkDataArrivesUnchecked) {
    Faults faults;
    faults.corrupt_sent_at = 100'000;
    ChannelPair pair(faulty_ends(faults));
    const auto data = pattern(1u << 20, 2);
    const auto& landed = pair.server_side.expect_transfer(1, data.size());
    ASSERT_TRUE(pair.client.append_bulk(1, 0, data).ok());
    ASSERT_TRUE(pair.server_side.wait_bulk_bytes(data.size()));
    std::size_t different = 0;
    for (std::size_t i = 0; i < data.size(); ++i) {
        different += landed[i] != data[i] ? 1 : 0;
    }
    EXPECT_EQ(different, 1u);
    EXPECT_TRUE(pair.server.error().ok());
}

class ResumableChannels : public BrokenChannels {};

TEST_P(ResumableChannels, AppendsGoOnWhileBroken) {
    Limits limits;
    limits.resume = true;
    ChannelPair pair(faulty_ends({}), limits);
    ASSERT_TRUE(append_word(pair.client, 1).ok());
    ASSERT_TRUE(pair.server_side.wait_frames(1));
    auto ends = GetParam().connected_pair();
    // The server attaches the new connection first, which makes the client's old one end.
    ASSERT_TRUE(pair.server.attach(std::move(ends.second), pair.client.last_received()).ok());
    ASSERT_TRUE(pair.client_side.wait_closed());
    EXPECT_TRUE(pair.client.error().ok()) << "a break is not an end";
    ASSERT_TRUE(append_word(pair.client, 2).ok());
    ASSERT_TRUE(append_word(pair.client, 3).ok());
    ASSERT_TRUE(pair.client.attach(std::move(ends.first), pair.server.last_received()).ok());
    ASSERT_TRUE(eventually([&] { return pair.server_side.words().size() == 3; }));
    EXPECT_EQ(pair.server_side.words(), (std::vector<std::uint64_t>{1, 2, 3}));
    pair.client.close(5s);
    ASSERT_TRUE(pair.server_side.wait_closed(2));
}

TEST_P(ResumableChannels, AttachFromOnClosed) {
    Limits limits;
    limits.resume = true;
    Ends second = GetParam().connected_pair();
    Recorder client_side;
    Recorder server_side;
    auto ends = GetParam().connected_pair();
    Channel client(std::move(ends.first), client_side, limits);
    Channel server(std::move(ends.second), server_side, limits);
    std::atomic<bool> once{true};
    client_side.when_closed = [&](const Error&) {
        if (!once.exchange(false)) {
            return;
        }
        EXPECT_TRUE(client.attach(std::move(second.first), server.last_received()).ok());
    };
    client.start();
    server.start();
    ASSERT_TRUE(append_word(client, 1).ok());
    ASSERT_TRUE(server_side.wait_frames(1));
    ASSERT_TRUE(server.attach(std::move(second.second), 0).ok());
    ASSERT_TRUE(append_word(client, 2).ok());
    ASSERT_TRUE(append_word(server, 3, FrameType::replies).ok());
    ASSERT_TRUE(eventually([&] { return server_side.words().size() == 2 && client_side.words().size() == 1; }));
    client.close();
    server.close();
}

TEST_P(ResumableChannels, AttachRefusesImpossibleResumePoint) {
    Limits limits;
    limits.resume = true;
    ChannelPair pair(faulty_ends({}), limits);
    ASSERT_TRUE(append_word(pair.client, 1).ok());
    ASSERT_TRUE(pair.server_side.wait_frames(1));
    const auto status = pair.client.attach(GetParam().connected_pair().first, 17);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::invalid_input);
    ASSERT_TRUE(append_word(pair.client, 2).ok()) << "the refusal broke the channel";
    ASSERT_TRUE(eventually([&] { return pair.server_side.words().size() == 2; }));
}

TEST_P(ResumableChannels, CloseWhileBrokenWakesWaiters) {
    Limits limits;
    limits.resume = true;
    limits.retained_bytes = 16u << 10;
    Faults faults;
    faults.cut_after_sent = 1000;
    ChannelPair pair(faulty_ends(faults), limits);
    const auto data = pattern(1u << 20, 3);
    std::atomic<int> done{0};
    ObservedThread producer([&] { EXPECT_FALSE(pair.client.append_bulk(1, 0, data, [&] { ++done; }).ok()); });
    ASSERT_TRUE(pair.client_side.wait_closed());
    EXPECT_TRUE(producer.blocks());
    ObservedThread flusher([&] { (void)pair.client.flush(); });
    EXPECT_TRUE(flusher.blocks());
    pair.client.close();
    producer.join();
    flusher.join();
    EXPECT_EQ(done, 1);
    EXPECT_EQ(pair.client_side.times_closed(), 1u) << "the end of a broken channel was reported again";
}

// Sends in both directions while the connection breaks again and again at random points: cut while sending or
// receiving, or damaged. Exactly the appended records must arrive.
class Reconnecting {
  public:
    Reconnecting(const Transport& transport, std::uint64_t seed) : transport_(transport), random_(seed) {
        Limits limits;
        limits.resume = true;
        limits.retained_bytes = 256u << 10;
        limits.frame_bytes = 2u << 10;
        auto ends = next_ends();
        client = std::make_unique<Channel>(std::move(ends.first), client_side, limits);
        server = std::make_unique<Channel>(std::move(ends.second), server_side, limits);
        client->start();
        server->start();
    }

    // Random cuts continue until `calm` is set.
    Ends next_ends() {
        auto ends = transport_.connected_pair();
        if (calm_) {
            return ends;
        }
        Faults faults;
        faults.seed = random_();
        faults.split_bytes = 2000;
        const std::uint64_t at = random_() % 60'000;
        switch (random_() % 3) {
            case 0: faults.cut_after_sent = at; break;
            case 1: faults.cut_after_received = at; break;
            default: faults.corrupt_sent_at = at; break;
        }
        // The server's side causes the damage, because it sends no bulk data, whose damage a channel does not detect.
        auto& end = random_() % 2 && !faults.corrupt_sent_at ? ends.first : ends.second;
        end = transport::faulty::wrap(std::move(end), faults);
        return ends;
    }

    void reconnect_until(const std::function<bool()>& finished) {
        // Each side reports the end of a connection once, so more reports than reconnections mean a new break.
        const auto broke = [&] { return std::max(client_side.times_closed(), server_side.times_closed()) > breaks; };
        while (true) {
            ASSERT_TRUE(eventually([&] { return finished() || broke(); })) << "no end after " << breaks << " breaks";
            if (finished()) {
                return;
            }
            calm_ = ++breaks >= 60;
            auto ends = next_ends();
            const auto client_has = client->last_received();
            ASSERT_TRUE(server->attach(std::move(ends.second), client_has).ok());
            ASSERT_TRUE(client->attach(std::move(ends.first), server->last_received()).ok());
        }
    }

    Recorder client_side;
    Recorder server_side;
    std::unique_ptr<Channel> client;
    std::unique_ptr<Channel> server;
    std::size_t breaks = 0;

  private:
    const Transport& transport_;
    std::mt19937_64 random_;
    bool calm_ = false;
};

TEST_P(ResumableChannels, ManyCutsLoseAndDuplicateNothing) {
    Reconnecting session(GetParam(), 12345);
    constexpr std::uint64_t kWords = 30'000;
    const auto data = pattern(3u << 20, 4);
    const auto& landed = session.server_side.expect_transfer(1, data.size());
    std::atomic<int> done{0};
    std::thread commands([&] {
        for (std::uint64_t i = 0; i < kWords; ++i) {
            ASSERT_TRUE(append_word(*session.client, i).ok());
        }
    });
    std::thread bulk([&] { ASSERT_TRUE(session.client->append_bulk(1, 0, data, [&] { ++done; }).ok()); });
    std::thread replies([&] {
        for (std::uint64_t i = 0; i < kWords; ++i) {
            ASSERT_TRUE(append_word(*session.server, i, FrameType::replies).ok());
        }
    });
    session.reconnect_until([&] {
        return session.server_side.payload_bytes() >= kWords * 8 && session.client_side.payload_bytes() >= kWords * 8 &&
               done == 1;
    });
    commands.join();
    bulk.join();
    replies.join();
    EXPECT_GT(session.breaks, 3u);
    for (auto* side : {&session.server_side, &session.client_side}) {
        const auto words = side->words();
        ASSERT_EQ(words.size(), kWords);
        for (std::uint64_t i = 0; i < kWords; ++i) {
            ASSERT_EQ(words[i], i);
        }
    }
    EXPECT_TRUE(landed == data);
    EXPECT_EQ(done, 1);
}

INSTANTIATE_TEST_SUITE_P(Plain, BrokenChannels, ::testing::ValuesIn(plain_transports()),
                         [](const auto& info) { return info.param.name; });

// No session resumes yet. A channel resumes in the same way over all transports; of them only shared memory sends by
// copying, so it and one other are enough. The cases bring the faults.
INSTANTIATE_TEST_SUITE_P(Over, ResumableChannels, ::testing::ValuesIn(transports({"tcp", "shm"})),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace gpupool::testing
