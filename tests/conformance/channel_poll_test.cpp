// Threads that poll a channel receive its frames themselves, where the transport supports that. No frame may be lost,
// duplicated or reordered between polling threads and the channel's own reader, and the end of the channel is still
// reported. Where the transport does not support it, polling changes nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <thread>

#include "tests/conformance/channel_fixture.h"

namespace gpupool::testing {
namespace {

using namespace std::chrono_literals;
using wire::Channel;

class Polling : public ::testing::TestWithParam<Transport> {
  protected:
    [[nodiscard]] static Ends ends() { return GetParam().connected_pair(); }

    static void expect_words(Recorder& recorder, std::uint64_t count) {
        EXPECT_TRUE(eventually([&] { return recorder.payload_bytes() >= count * 8; }));
        const auto words = recorder.words();
        ASSERT_EQ(words.size(), count);
        for (std::uint64_t i = 0; i < count; ++i) {
            ASSERT_EQ(words[i], i);
        }
    }
};

// The waiting thread receives each answer, or the reader does once the thread has stopped polling.
TEST_P(Polling, PollingThreadsReceiveTheirAnswers) {
    ChannelPair pair(ends());
    constexpr std::uint64_t kCount = 300;
    std::thread server([&] {
        for (std::uint64_t i = 0; i < kCount; ++i) {
            std::optional<Channel::PollingReceiver> receiver(pair.server);
            while (pair.server_side.payload_bytes() <= i * 8) {
                receiver->poll();
                std::this_thread::yield();
            }
            receiver.reset();
            ASSERT_TRUE(append_word(pair.server, i).ok());
        }
    });
    for (std::uint64_t i = 0; i < kCount; ++i) {
        ASSERT_TRUE(append_word(pair.client, i).ok());
        std::optional<Channel::PollingReceiver> receiver(pair.client);
        const auto timeout = std::chrono::steady_clock::now() + (i % 7 == 0 ? 0us : 2000us);
        while (pair.client_side.payload_bytes() <= i * 8 && std::chrono::steady_clock::now() < timeout) {
            receiver->poll();
            std::this_thread::yield();
        }
        receiver.reset();
        ASSERT_TRUE(eventually([&] { return pair.client_side.payload_bytes() > i * 8; }));
    }
    server.join();
    expect_words(pair.server_side, kCount);
    expect_words(pair.client_side, kCount);
}

// Several threads start and stop polling all the time, beside the reader, under a continuous load of records and bulk
// data.
TEST_P(Polling, SeveralThreadsPollUnderLoad) {
    wire::Limits limits;
    limits.retained_bytes = 256u << 10;
    ChannelPair pair(ends(), limits);
    constexpr std::uint64_t kCount = 20'000;
    constexpr std::size_t kData = 8u << 20;
    const auto data = pattern(kData, 3);
    auto& landed = pair.server_side.expect_transfer(1, kData);
    std::atomic<bool> over{false};
    std::vector<std::thread> pollers;
    for (int i = 0; i < 3; ++i) {
        pollers.emplace_back([&, i] {
            while (!over) {
                Channel::PollingReceiver receiver(pair.server);
                for (int n = 0; n < 10 << i; ++n) {
                    receiver.poll();
                }
                std::this_thread::yield();
            }
        });
    }
    std::thread bulk([&] { EXPECT_TRUE(pair.client.append_bulk(1, 0, data).ok()); });
    for (std::uint64_t i = 0; i < kCount; ++i) {
        ASSERT_TRUE(append_word(pair.client, i).ok());
    }
    bulk.join();
    EXPECT_TRUE(pair.server_side.wait_bulk_bytes(kData));
    expect_words(pair.server_side, kCount);
    over = true;
    for (auto& poller : pollers) {
        poller.join();
    }
    EXPECT_EQ(landed, data);
}

// The reader slept while a thread polled; it takes over when no thread polls any more.
TEST_P(Polling, FramesAfterThePollGoToTheReader) {
    ChannelPair pair(ends());
    for (std::uint64_t i = 0; i < 30; ++i) {
        {
            Channel::PollingReceiver receiver(pair.server);
            ASSERT_TRUE(readers_sleep(2));
            if (i % 2 == 0) {
                receiver.poll();
            }
            if (i % 3 == 0) {
                ASSERT_TRUE(append_word(pair.client, i).ok());
            }
            if (i % 6 == 0) {
                ASSERT_TRUE(pair.client.flush().ok());  // a copying transport has it now, and nothing receives it
            }
        }
        if (i % 3 != 0) {
            ASSERT_TRUE(append_word(pair.client, i).ok());
        }
        ASSERT_TRUE(eventually([&] { return pair.server_side.payload_bytes() > i * 8; }));
    }
    expect_words(pair.server_side, 30);
}

// While threads poll again and again the reader lets them receive; it resumes when they stop.
TEST_P(Polling, ReaderResumesWhenPollingStops) {
    ChannelPair pair(ends());
    for (std::uint64_t i = 0; i < 6; i += 2) {
        ASSERT_TRUE(append_word(pair.client, i).ok());  // wakes the reader
        for (int n = 0; n < 300; ++n) {
            Channel::PollingReceiver receiver(pair.server);
            receiver.poll();
            std::this_thread::yield();
        }
        ASSERT_TRUE(append_word(pair.client, i + 1).ok());
        expect_words(pair.server_side, i + 2);
    }
}

// The first frame of a session as it is on the wire: 64 bytes of commands.
std::vector<std::byte> first_frame() {
    const std::vector<std::byte> payload(64);
    wire::FrameHeader fields;
    fields.payload_bytes = static_cast<std::uint32_t>(payload.size());
    fields.sequence = 1;
    fields.type = wire::FrameType::commands;
    fields.payload_crc = wire::payload_crc(fields.type, payload);
    std::array<std::byte, wire::kHeaderBytes> header;
    wire::encode(fields, header);
    std::vector<std::byte> frame(header.size() + payload.size());
    std::copy(payload.begin(), payload.end(), std::copy(header.begin(), header.end(), frame.begin()));
    return frame;
}

Status send_all(transport::Connection& to, std::span<const std::byte> bytes) {
    const transport::ConstBuffer all(bytes);
    return to.send(std::span(&all, 1));
}

// A frame that has arrived only in part is left to the reader, so that poll() does not block.
TEST_P(Polling, PartialFrameDoesNotBlockPoll) {
    auto [peer, ours] = ends();
    Recorder recorder;
    Channel channel(std::move(ours), recorder);
    channel.start();
    const auto frame = first_frame();
    const std::span<const std::byte> bytes(frame);
    ASSERT_TRUE(send_all(*peer, bytes.first(40)).ok());
    Channel::PollingReceiver receiver(channel);
    for (int i = 0; i < 1000; ++i) {
        receiver.poll();  // returns every time
    }
    EXPECT_TRUE(recorder.frames().empty());
    ASSERT_TRUE(send_all(*peer, bytes.subspan(40)).ok());
    EXPECT_TRUE(recorder.wait_frames(1)) << "the reader waits for a thread that stopped polling";
}

TEST_P(Polling, ViolationIsReportedOnce) {
    auto [peer, ours] = ends();
    Recorder recorder;
    Channel channel(std::move(ours), recorder);
    channel.start();
    ASSERT_TRUE(send_all(*peer, first_frame()).ok());
    ASSERT_TRUE(recorder.wait_frames(1));
    Channel::PollingReceiver receiver(channel);
    ASSERT_TRUE(readers_sleep(1));
    (void)send_all(*peer, std::vector<std::byte>(512, std::byte{0x5a}));  // may end in the middle of it
    ASSERT_TRUE(eventually([&] {
        receiver.poll();
        return recorder.times_closed() != 0;
    }));
    EXPECT_EQ(recorder.times_closed(), 1u);
    EXPECT_EQ(recorder.cause()->code, ErrorCode::invalid_input);
}

// The polling thread does not call poll(), and even waits for frames that only the reader can receive now.
TEST_P(Polling, ReaderTakesOverFromBlockedPollingThread) {
    ChannelPair pair(ends());
    const Channel::PollingReceiver receiver(pair.server);
    ASSERT_TRUE(readers_sleep(2));
    for (std::uint64_t i = 0; i < 5; ++i) {
        ASSERT_TRUE(append_word(pair.client, i).ok());
        expect_words(pair.server_side, i + 1);
    }
}

TEST_P(Polling, EndIsReportedWhilePolling) {
    ChannelPair pair(ends());
    Channel::PollingReceiver receiver(pair.server);
    ASSERT_TRUE(append_word(pair.client, 0).ok());
    std::thread other([&] { pair.client.close(5s); });
    EXPECT_TRUE(eventually([&] {
        receiver.poll();
        return pair.server_side.times_closed() == 1;
    }));
    other.join();
    expect_words(pair.server_side, 1);
}

// Each kind of connection that can be polled, and one that cannot.
INSTANTIATE_TEST_SUITE_P(All, Polling, ::testing::ValuesIn(transports({"tcp", "shm", "shm_adopted", "inproc"})),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace gpupool::testing
