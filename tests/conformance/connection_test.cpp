// What every implementation of Connection and Listener must do.
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <thread>

#include "tests/conformance/transports.h"
#include "tests/support/waiting.h"

namespace gpupool::testing {
namespace {

using namespace std::chrono_literals;
using test::eventually;
using test::wait_until_blocked;
using transport::Clock;
using transport::Connection;
using transport::ConstBuffer;

Status send_all(Connection& connection, std::span<const std::byte> data) {
    const ConstBuffer buffers[] = {data};
    return connection.send(buffers);
}

class Connections : public ::testing::TestWithParam<Transport> {
  protected:
    void SetUp() override { std::tie(client_, server_) = GetParam().connected_pair(); }

    std::unique_ptr<Connection> client_;
    std::unique_ptr<Connection> server_;
};

TEST_P(Connections, DeliverGatheredBuffersInOrder) {
    const auto data = pattern(3000, 1);
    const std::span<const std::byte> all(data);
    const ConstBuffer buffers[] = {all.first(1), {}, all.subspan(1, 999), all.subspan(1000, 2000), {}};
    ASSERT_TRUE(client_->send(buffers).ok());
    std::vector<std::byte> received(data.size());
    ASSERT_TRUE(transport::receive_exactly(*server_, received).ok());
    EXPECT_EQ(received, data);
}

TEST_P(Connections, SendNothing) {
    ASSERT_TRUE(client_->send({}).ok());
    const ConstBuffer empty[] = {{}, {}};
    ASSERT_TRUE(client_->send(empty).ok());
    const auto data = pattern(1, 2);
    ASSERT_TRUE(send_all(*client_, data).ok());
    std::vector<std::byte> received(16);
    const auto count = server_->receive(received);
    ASSERT_TRUE(count.ok());
    EXPECT_EQ(*count, 1u);
    EXPECT_EQ(received[0], data[0]);
}

TEST_P(Connections, TakeManyPiecesInOneSend) {
    const auto data = pattern(1500, 3);
    std::vector<ConstBuffer> buffers;
    for (const auto& byte : data) {
        buffers.emplace_back(&byte, 1);
    }
    ASSERT_TRUE(client_->send(buffers).ok());
    std::vector<std::byte> received(data.size());
    ASSERT_TRUE(transport::receive_exactly(*server_, received).ok());
    EXPECT_EQ(received, data);
}

TEST_P(Connections, CarryManySmallSends) {
    constexpr int kCount = 2000;
    std::thread sender([&] {
        for (std::uint32_t i = 0; i < kCount; ++i) {
            ASSERT_TRUE(send_all(*client_, std::as_bytes(std::span(&i, 1))).ok());
        }
    });
    for (std::uint32_t i = 0; i < kCount; ++i) {
        std::uint32_t value = 0;
        ASSERT_TRUE(transport::receive_exactly(*server_, std::as_writable_bytes(std::span(&value, 1))).ok());
        ASSERT_EQ(value, i);
    }
    sender.join();
}

TEST_P(Connections, CarryBulkBothWaysAtOnce) {
    constexpr std::size_t kBytes = 3u << 20;
    const auto there = pattern(kBytes, 4);
    const auto back = pattern(kBytes, 5);
    std::vector<std::byte> at_server(kBytes);
    std::vector<std::byte> at_client(kBytes);
    std::thread client_sends([&] { EXPECT_TRUE(send_all(*client_, there).ok()); });
    std::thread server_sends([&] { EXPECT_TRUE(send_all(*server_, back).ok()); });
    std::thread client_receives([&] { EXPECT_TRUE(transport::receive_exactly(*client_, at_client).ok()); });
    EXPECT_TRUE(transport::receive_exactly(*server_, at_server).ok());
    client_sends.join();
    server_sends.join();
    client_receives.join();
    EXPECT_TRUE(at_server == there);
    EXPECT_TRUE(at_client == back);
}

TEST_P(Connections, ShutdownWakesReceiver) {
    std::thread other([&, receiver = ::gettid()] {
        EXPECT_TRUE(wait_until_blocked(receiver));
        client_->shutdown();
    });
    std::byte byte;
    const auto result = client_->receive({&byte, 1});
    other.join();
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().code, ErrorCode::closed);
}

TEST_P(Connections, ShutdownWakesSender) {
    const auto data = pattern(1u << 20, 6);
    std::thread other([&, sender = ::gettid()] {
        EXPECT_TRUE(wait_until_blocked(sender));
        client_->shutdown();
    });
    Status status;
    for (int i = 0; status.ok() && i < 4096; ++i) {
        status = send_all(*client_, data);  // the peer does not read
    }
    other.join();
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::closed);
}

TEST_P(Connections, FailAfterShutdown) {
    client_->shutdown();
    client_->shutdown();
    const auto data = pattern(8, 7);
    const auto sent = send_all(*client_, data);
    ASSERT_FALSE(sent.ok());
    EXPECT_EQ(sent.error().code, ErrorCode::closed);
    std::byte byte;
    const auto received = client_->receive({&byte, 1});
    ASSERT_FALSE(received.ok());
    EXPECT_EQ(received.error().code, ErrorCode::closed);
}

TEST_P(Connections, PeerReadsEverythingBeforeTheEnd) {
    const auto data = pattern(5000, 8);
    ASSERT_TRUE(send_all(*client_, data).ok());
    client_->shutdown();
    std::vector<std::byte> received(data.size());
    ASSERT_TRUE(transport::receive_exactly(*server_, received).ok());
    EXPECT_EQ(received, data);
    const auto end = server_->receive(received);
    ASSERT_FALSE(end.ok());
    EXPECT_EQ(end.error().code, ErrorCode::closed);
}

TEST_P(Connections, DestroyedPeerIsClosed) {
    client_.reset();
    std::byte byte;
    const auto end = server_->receive({&byte, 1});
    ASSERT_FALSE(end.ok());
    EXPECT_EQ(end.error().code, ErrorCode::closed);
}

TEST_P(Connections, SendToGonePeerFailsWithoutSignal) {
    client_.reset();
    const auto data = pattern(64u << 10, 9);
    Status status;
    ASSERT_TRUE(eventually([&] {
        status = send_all(*server_, data);
        return !status.ok();
    }));
    EXPECT_EQ(status.error().code, ErrorCode::closed);
}

TEST_P(Connections, ReceiveDeadline) {
    std::byte byte;
    const auto before = Clock::now();
    client_->set_receive_deadline(before + 30ms);
    const auto late = client_->receive({&byte, 1});
    ASSERT_FALSE(late.ok());
    EXPECT_EQ(late.error().code, ErrorCode::timed_out);
    EXPECT_GE(Clock::now() - before, 30ms);
    // A receive whose deadline has passed still returns data that is there, and the connection works on without a
    // deadline.
    client_->set_receive_deadline(transport::kNoDeadline);
    const auto data = pattern(1, 10);
    ASSERT_TRUE(send_all(*server_, data).ok());
    ASSERT_TRUE(client_->receive({&byte, 1}).ok());
    EXPECT_EQ(byte, data[0]);
}

TEST_P(Connections, NamePeer) {
    EXPECT_FALSE(client_->peer().empty());
}

TEST_P(Connections, ListenerShutdownWakesAccept) {
    auto meeting = GetParam().meet();
    std::thread other([&, acceptor = ::gettid()] {
        EXPECT_TRUE(wait_until_blocked(acceptor));
        meeting.listener->shutdown();
    });
    const auto accepted = meeting.listener->accept();
    other.join();
    ASSERT_FALSE(accepted.ok());
    EXPECT_EQ(accepted.error().code, ErrorCode::closed);
    const auto again = meeting.listener->accept();
    ASSERT_FALSE(again.ok());
    EXPECT_EQ(again.error().code, ErrorCode::closed);
}

TEST_P(Connections, ListenerAcceptsSeveral) {
    auto meeting = GetParam().meet();
    EXPECT_FALSE(meeting.listener->address().empty());
    std::vector<Ends> pairs;
    for (int i = 0; i < 3; ++i) {
        auto here = meeting.connect();
        ASSERT_TRUE(here.ok());
        auto there = meeting.listener->accept();
        ASSERT_TRUE(there.ok());
        pairs.emplace_back(std::move(*here), std::move(*there));
    }
    for (std::size_t i = 0; i < pairs.size(); ++i) {
        const auto data = pattern(8, i);
        ASSERT_TRUE(send_all(*pairs[i].first, data).ok());
    }
    for (std::size_t i = 0; i < pairs.size(); ++i) {
        std::vector<std::byte> received(8);
        ASSERT_TRUE(transport::receive_exactly(*pairs[i].second, received).ok());
        EXPECT_EQ(received, pattern(8, i));
    }
}

INSTANTIATE_TEST_SUITE_P(All, Connections, ::testing::ValuesIn(all_transports()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace gpupool::testing
