// Connections and listeners in an event loop: nothing blocks, and the named descriptor says when to go on.
#include <gtest/gtest.h>
#include <poll.h>

#include <optional>
#include <vector>

#include "tests/conformance/transports.h"
#include "tests/support/waiting.h"

namespace gpupool::testing {
namespace {

using transport::Connection;
using transport::ConstBuffer;

class EventLoops : public ::testing::TestWithParam<Transport> {
  protected:
    void SetUp() override { std::tie(client_, server_) = GetParam().connected_pair(); }

    // Whether the readiness is there within the time. One without a descriptor is.
    static bool comes(const Connection::Readiness& readiness, int timeout_ms) {
        pollfd entry{readiness.descriptor, static_cast<short>(readiness.to_write ? POLLOUT : POLLIN), 0};
        return readiness.descriptor < 0 || ::poll(&entry, 1, timeout_ms) > 0;
    }
    // Receives one portion as a loop does. Nothing: the connection has ended.
    static std::optional<std::vector<std::byte>> receive(Connection& connection, std::size_t most) {
        std::vector<std::byte> bytes(most);
        for (;;) {
            const auto received = connection.receive_some(bytes);
            const auto readiness = received && *received == 0 ? connection.receive_readiness()
                                                              : Result<Connection::Readiness>(Connection::Readiness{});
            if (!received || !readiness) {
                EXPECT_EQ(received ? readiness.error().code : received.error().code, ErrorCode::closed);
                return std::nullopt;
            }
            if (*received != 0) {
                bytes.resize(*received);
                return bytes;
            }
            if (!comes(*readiness, 10000)) {
                ADD_FAILURE() << "nothing has arrived";
                return std::nullopt;
            }
        }
    }

    std::unique_ptr<Connection> client_, server_;
};

TEST_P(EventLoops, ReceiveWhatArrivesAndTheEnd) {
    std::byte nothing[1];
    ASSERT_EQ(*server_->receive_some(nothing), 0u);
    // A descriptor may be ready without need, but not for ever.
    EXPECT_TRUE(test::eventually([&] {
        const auto readiness = server_->receive_readiness();
        return readiness && readiness->descriptor >= 0 && !comes(*readiness, 0) && *server_->receive_some(nothing) == 0;
    }));
    for (const std::size_t bytes : {1u, 40u, 100'000u}) {
        const auto sent = pattern(bytes, bytes);
        const ConstBuffer buffers[] = {sent};
        ASSERT_TRUE(client_->send(buffers));
        std::vector<std::byte> received;
        while (received.size() < bytes) {
            const auto part = receive(*server_, bytes - received.size());
            ASSERT_TRUE(part);
            received.insert(received.end(), part->begin(), part->end());
        }
        EXPECT_EQ(received, sent);
    }
    const auto last = pattern(10, 1);
    const ConstBuffer buffers[] = {last};
    ASSERT_TRUE(client_->send(buffers));
    client_.reset();
    EXPECT_EQ(receive(*server_, 100), last);
    EXPECT_EQ(receive(*server_, 100), std::nullopt);
}

TEST_P(EventLoops, SendWhatThereIsRoomFor) {
    const auto data = pattern(8u << 20, 3);
    std::size_t sent_bytes = 0;
    std::vector<std::byte> received;
    while (sent_bytes < data.size()) {
        const ConstBuffer rest[] = {std::span(data).subspan(sent_bytes)};
        const auto sent = server_->send_some(rest);
        ASSERT_TRUE(sent) << sent.error().message;
        sent_bytes += *sent;
        if (*sent != 0) {
            continue;
        }
        const auto readiness = server_->send_readiness();
        ASSERT_TRUE(readiness) << readiness.error().message;
        // A sender is woken when a part of the room is free again, not for every byte.
        while (!comes(*readiness, 0)) {
            const auto part = receive(*client_, 1u << 20);
            ASSERT_TRUE(part);
            received.insert(received.end(), part->begin(), part->end());
        }
    }
    EXPECT_FALSE(received.empty()) << "the sender had to wait";
    while (received.size() < data.size()) {
        const auto part = receive(*client_, 1u << 20);
        ASSERT_TRUE(part);
        received.insert(received.end(), part->begin(), part->end());
    }
    EXPECT_EQ(received, data);
}

TEST_P(EventLoops, Accept) {
    auto meeting = GetParam().meet();
    EXPECT_EQ(*meeting.listener->accept_now(), nullptr);
    pollfd entry{meeting.listener->native_handle(), POLLIN, 0};
    EXPECT_EQ(::poll(&entry, 1, 0), 0);
    const auto client = meeting.connect();
    ASSERT_TRUE(client);
    EXPECT_EQ(::poll(&entry, 1, 10000), 1);
    EXPECT_NE(*meeting.listener->accept_now(), nullptr);
    EXPECT_EQ(*meeting.listener->accept_now(), nullptr);
    meeting.listener->shutdown();
    EXPECT_EQ(::poll(&entry, 1, 10000), 1);
    EXPECT_EQ(meeting.listener->accept_now().error().code, ErrorCode::closed);
}

INSTANTIATE_TEST_SUITE_P(All, EventLoops, ::testing::ValuesIn(transports({"tcp", "shm"})),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace gpupool::testing
