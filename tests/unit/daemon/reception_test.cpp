// The reception, with connections over socket pairs and a clock that the test advances: what a handshake reads, its
// deadlines, whom the reception drops, sessions that wait for a place, and administration connections.
#include "server/daemon/reception.h"

#include <capnp/message.h>
#include <capnp/serialize.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <deque>
#include <list>
#include <string>
#include <vector>

#include "protocol/schema/control.capnp.h"
#include "protocol/transport/tcp/connection.h"
#include "tests/support/manual_clock.h"

namespace gpupool::test {
namespace {

using daemon::Admitted;
using daemon::Answer;
using daemon::Queued;
using daemon::Refusal;
using daemon::Verdict;
using std::chrono::milliseconds;
using transport::Connection;
using wire::FrameType;

std::vector<std::byte> bytes_of(capnp::MessageBuilder& message) {
    const auto words = capnp::messageToFlatArray(message);
    const auto bytes = std::as_bytes(std::span(words.begin(), words.size()));
    return {bytes.begin(), bytes.end()};
}

enum class For { session, administration };

std::vector<std::byte> hello(For purpose = For::session) {
    capnp::MallocMessageBuilder message;
    auto hello = message.initRoot<schema::Hello>();
    hello.setProtocolVersion(schema::PROTOCOL_VERSION);
    if (purpose == For::session) {
        hello.getPurpose().initSession();
    } else {
        hello.getPurpose().setAdministration();
    }
    return wire::frame_bytes(FrameType::hello, bytes_of(message));
}

std::vector<std::byte> request(const char* text) {
    return wire::frame_bytes(FrameType::control, std::as_bytes(std::span(text, std::strlen(text))));
}

// A connection whose peer has a name of the test's choice.
class Named final : public Connection {
  public:
    Named(std::unique_ptr<Connection> inner, std::string peer) : inner_(std::move(inner)), peer_(std::move(peer)) {}
    Status send(std::span<const transport::ConstBuffer> buffers) override { return inner_->send(buffers); }
    Result<std::size_t> send_some(std::span<const transport::ConstBuffer> buffers) override {
        return inner_->send_some(buffers);
    }
    Result<std::size_t> receive(transport::MutableBuffer buffer) override { return inner_->receive(buffer); }
    Result<std::size_t> receive_some(transport::MutableBuffer buffer) override { return inner_->receive_some(buffer); }
    Result<Readiness> receive_readiness() override { return inner_->receive_readiness(); }
    Result<Readiness> send_readiness() override { return inner_->send_readiness(); }
    void set_receive_deadline(transport::Clock::time_point deadline) noexcept override {
        inner_->set_receive_deadline(deadline);
    }
    void shutdown() noexcept override { inner_->shutdown(); }
    [[nodiscard]] std::string peer() const override { return peer_; }
    [[nodiscard]] int native_handle() const noexcept override { return inner_->native_handle(); }

  private:
    const std::unique_ptr<Connection> inner_;
    const std::string peer_;
};

// The other end of a connection.
class Peer {
  public:
    explicit Peer(int socket) : socket_(socket) {}

    void send(std::span<const std::byte> bytes) const {
        EXPECT_EQ(::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
    }
    // What has arrived, up to `most`; empty if nothing has.
    std::vector<std::byte> receive(std::size_t most = 8u << 20) const {
        std::vector<std::byte> bytes(most);
        std::size_t count = 0;
        while (count < most) {
            const auto got = ::recv(socket_.get(), bytes.data() + count, most - count, MSG_DONTWAIT);
            if (got <= 0) {
                break;
            }
            count += static_cast<std::size_t>(got);
        }
        bytes.resize(count);
        return bytes;
    }
    // The next frame, which must have arrived.
    wire::ReceivedFrame frame() const {
        std::vector<std::byte> head = receive(wire::kHeaderBytes);
        if (head.size() != wire::kHeaderBytes) {
            ADD_FAILURE() << "no frame has arrived";
            return {};
        }
        const auto header = wire::decode(std::span(head).first<wire::kHeaderBytes>());
        EXPECT_TRUE(header);
        return {header->type, receive(header->payload_bytes)};
    }
    [[nodiscard]] std::string refusal() const {
        const auto received = frame();
        EXPECT_EQ(received.type, FrameType::refused);
        auto words = kj::heapArray<capnp::word>(received.payload.size() / sizeof(capnp::word));
        std::memcpy(words.begin(), received.payload.data(), received.payload.size());
        capnp::FlatArrayMessageReader reader(words);
        return reader.getRoot<schema::Refused>().getMessage().cStr();
    }
    // The position in a message to a waiting client.
    [[nodiscard]] unsigned position() const {
        const auto received = frame();
        EXPECT_EQ(received.type, FrameType::control);
        auto words = kj::heapArray<capnp::word>(received.payload.size() / sizeof(capnp::word));
        std::memcpy(words.begin(), received.payload.data(), received.payload.size());
        capnp::FlatArrayMessageReader reader(words);
        const auto control = reader.getRoot<schema::Control>();
        return control.isWaiting() ? control.getWaiting().getPosition() : 0;
    }
    [[nodiscard]] bool ended() const {
        char byte = 0;
        return ::recv(socket_.get(), &byte, 1, MSG_DONTWAIT | MSG_PEEK) == 0;
    }
    void leave() { socket_.reset(); }

  private:
    UniqueFd socket_;
};

class Host final : public daemon::SessionHost {
  public:
    Verdict admit(std::unique_ptr<Connection>& connection, daemon::Admission& /*admission*/,
                  daemon::RequestId request) override {
        asked.push_back(request);
        if (std::holds_alternative<Admitted>(verdict)) {
            taken.push_back(std::move(connection));
        }
        return verdict;
    }
    void withdraw(daemon::RequestId request) override { withdrawn.push_back(request); }
    void answer(const daemon::Admission& /*admission*/, std::span<const std::byte> payload,
                std::function<void(Answer)> reply) override {
        requests.emplace_back(reinterpret_cast<const char*>(payload.data()), payload.size());
        replies.push_back(std::move(reply));
    }

    Verdict verdict = Admitted{};
    std::vector<daemon::RequestId> asked, withdrawn;
    std::vector<std::unique_ptr<Connection>> taken;
    std::vector<std::string> requests;
    std::deque<std::function<void(Answer)>> replies;
};

class ReceptionTest : public ::testing::Test {
  protected:
    ReceptionTest() {
        config_.max_handshakes = 4;
        config_.handshake_timeout = milliseconds(2000);
    }
    Peer& arrive(const std::string& name = "tcp 10.0.0.1:5000") {
        int ends[2];
        EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
        Peer& peer = peers_.emplace_back(ends[0]);
        reception_.receive(std::make_unique<Named>(*transport::tcp::adopt(ends[1]), name));
        loop_.poll();
        return peer;
    }
    void send(Peer& peer, std::span<const std::byte> bytes) {
        peer.send(bytes);
        loop_.poll();
    }
    void pass(milliseconds time) {
        clock_.advance(time);
        loop_.poll();
    }
    void reply(Answer answer) {
        ASSERT_FALSE(host_.replies.empty());
        host_.replies.front()(std::move(answer));
        host_.replies.pop_front();
        loop_.poll();
    }

    ManualClock clock_;
    daemon::Loop loop_{clock_};
    daemon::Config config_;
    Host host_;
    std::list<Peer> peers_;
    daemon::Reception reception_{loop_, config_, {}, host_};
};

TEST_F(ReceptionTest, AHandshakeReadsExactlyOneFrame) {
    Peer& peer = arrive();
    auto bytes = hello();
    for (const std::byte& byte : bytes) {
        EXPECT_TRUE(host_.taken.empty());
        send(peer, {&byte, 1});
    }
    ASSERT_EQ(host_.taken.size(), 1u);

    Peer& eager = arrive();
    const std::string rest = "what the worker is to read";
    const auto following = std::as_bytes(std::span(rest));
    bytes.insert(bytes.end(), following.begin(), following.end());
    send(eager, bytes);
    ASSERT_EQ(host_.taken.size(), 2u);
    std::vector<std::byte> unread(rest.size() + 1);
    ASSERT_EQ(*host_.taken.back()->receive_some(unread), rest.size());
    EXPECT_EQ(std::memcmp(unread.data(), rest.data(), rest.size()), 0);
    // The reception does not watch a connection that it has passed on.
    pass(milliseconds(10000));
    EXPECT_FALSE(eager.ended());
}

TEST_F(ReceptionTest, AHelloMustArriveInTime) {
    Peer& silent = arrive();
    Peer& slow = arrive();
    pass(milliseconds(1999));
    const auto bytes = hello();
    send(slow, std::span(bytes).first(50));
    EXPECT_TRUE(silent.receive().empty());
    pass(milliseconds(1));
    for (const Peer* peer : {&silent, &slow}) {
        EXPECT_NE(peer->refusal().find("no Hello within 2000 ms"), std::string::npos);
        EXPECT_FALSE(peer->ended()) << "it has a moment to read why";
    }
    pass(milliseconds(1000));
    EXPECT_TRUE(silent.ended());
    EXPECT_TRUE(slow.ended());
}

TEST_F(ReceptionTest, ARefusedPeerKeepsItsPlaceUntilItLeaves) {
    config_.max_handshakes = 1;
    Peer& refused = arrive();
    send(refused, wire::frame_bytes(FrameType::commands, {}));
    EXPECT_NE(refused.refusal().find("must be a Hello"), std::string::npos);
    EXPECT_NE(arrive().refusal().find("too many connections"), std::string::npos);
    refused.leave();
    loop_.poll();
    Peer& next = arrive();
    send(next, hello());
    EXPECT_EQ(host_.taken.size(), 1u);
}

TEST_F(ReceptionTest, DropsTheOldestSilentConnectionOfTheBusiestHost) {
    Peer& other = arrive("tcp 10.0.0.2:1");
    Peer& first = arrive("tcp 10.0.0.1:1");
    Peer& second = arrive("tcp 10.0.0.1:2");
    Peer& leaving = arrive("tcp 10.0.0.1:3");
    send(leaving, wire::frame_bytes(FrameType::commands, {}));
    Peer& fifth = arrive("tcp 10.0.0.3:1");
    EXPECT_NE(first.refusal().find("sent nothing"), std::string::npos);
    EXPECT_TRUE(first.ended());
    for (Peer* peer : {&other, &second, &fifth}) {
        EXPECT_FALSE(peer->ended());
        send(*peer, hello());
    }
    EXPECT_EQ(host_.taken.size(), 3u);
}

TEST_F(ReceptionTest, ASessionWaitsForItsPlace) {
    host_.verdict = Queued{2, 2, "room"};
    Peer& peer = arrive();
    send(peer, hello());
    EXPECT_EQ(peer.position(), 2u);
    send(peer, std::as_bytes(std::span("for the worker", 14)));
    reception_.ask_again();
    loop_.poll();
    EXPECT_TRUE(peer.receive().empty()) << "its position is the same";
    pass(milliseconds(5000));
    EXPECT_EQ(peer.position(), 2u) << "a sign of life";
    host_.verdict = Queued{1, 2, "room"};
    reception_.ask_again();
    loop_.poll();
    EXPECT_EQ(peer.position(), 1u);
    host_.verdict = Admitted{};
    reception_.ask_again();
    loop_.poll();
    ASSERT_EQ(host_.taken.size(), 1u);
    std::vector<std::byte> unread(100);
    EXPECT_EQ(*host_.taken.back()->receive_some(unread), 14u);
    EXPECT_EQ(host_.asked, std::vector<daemon::RequestId>(4, host_.asked.front())) << "one request";
    EXPECT_TRUE(host_.withdrawn.empty());
}

TEST_F(ReceptionTest, AWaitingClientThatLeavesIsForgotten) {
    host_.verdict = Queued{1, 2, "room"};
    Peer& quiet = arrive();
    send(quiet, hello());
    Peer& eager = arrive();
    auto bytes = hello();
    bytes.push_back(std::byte{1});
    send(eager, bytes);
    ASSERT_EQ(host_.asked.size(), 2u);
    quiet.leave();
    loop_.poll();
    EXPECT_EQ(host_.withdrawn, std::vector<daemon::RequestId>{host_.asked[0]});
    eager.leave();
    pass(milliseconds(1000));
    EXPECT_EQ(host_.withdrawn, host_.asked);
    reception_.ask_again();
    loop_.poll();
    EXPECT_EQ(host_.asked.size(), 2u);
}

TEST_F(ReceptionTest, WaitingClientsTakeNoPlaceOfPendingConnections) {
    host_.verdict = Queued{1, 2, "room"};
    for (std::size_t i = 0; i < 2 * config_.max_handshakes; ++i) {
        Peer& peer = arrive();
        send(peer, hello());
        EXPECT_EQ(peer.position(), 1u);
    }
}

TEST_F(ReceptionTest, AWaitingClientMayBeRefusedLater) {
    host_.verdict = Queued{1, 2, "room"};
    Peer& peer = arrive();
    send(peer, hello());
    EXPECT_EQ(peer.position(), 1u);
    host_.verdict = Refusal{schema::Refused::Reason::CAPACITY, "waited for too long"};
    reception_.ask_again();
    loop_.poll();
    EXPECT_EQ(peer.refusal(), "waited for too long");
    pass(milliseconds(1000));
    EXPECT_TRUE(peer.ended());
}

TEST_F(ReceptionTest, ClosingSendsWaitingClientsAway) {
    host_.verdict = Queued{1, 2, "room"};
    Peer& waiting = arrive();
    send(waiting, hello());
    EXPECT_EQ(waiting.position(), 1u);
    Peer& silent = arrive();
    reception_.close();
    EXPECT_NE(waiting.refusal().find("stopping"), std::string::npos);
    EXPECT_TRUE(waiting.ended());
    EXPECT_TRUE(silent.ended());
    EXPECT_EQ(host_.withdrawn, host_.asked);
}

TEST_F(ReceptionTest, AnAdministrationConnectionSendsManyRequests) {
    Peer& peer = arrive();
    send(peer, hello(For::administration));
    auto both = request("one");
    const auto second = request("two");
    both.insert(both.end(), second.begin(), second.end());
    send(peer, both);
    EXPECT_EQ(host_.requests, std::vector<std::string>{"one"}) << "one after the other";
    pass(milliseconds(60000));
    EXPECT_FALSE(peer.ended()) << "it waits for its answer";
    reply(std::vector(10, std::byte{1}));
    EXPECT_EQ(peer.frame().payload, std::vector(10, std::byte{1}));
    EXPECT_EQ(host_.requests, (std::vector<std::string>{"one", "two"}));
    reply(Refusal{schema::Refused::Reason::PROTOCOL, "unknown"});
    EXPECT_EQ(peer.refusal(), "unknown");
}

TEST_F(ReceptionTest, AnIdleAdministrationConnectionEnds) {
    Peer& peer = arrive();
    send(peer, hello(For::administration));
    pass(milliseconds(9999));
    EXPECT_FALSE(peer.ended());
    pass(milliseconds(1));
    EXPECT_TRUE(peer.ended());
}

TEST_F(ReceptionTest, AnAnswerMayComeAfterItsAskerHasLeft) {
    Peer& peer = arrive();
    send(peer, hello(For::administration));
    send(peer, request("slow"));
    reception_.close();
    reply(std::vector(10, std::byte{1}));
    EXPECT_TRUE(peer.ended());
}

TEST_F(ReceptionTest, AnAnswerIsSentAsFastAsItIsRead) {
    const std::vector<std::byte> answer(4u << 20, std::byte{7});
    Peer& reads = arrive();
    send(reads, hello(For::administration));
    send(reads, request("much"));
    reply(answer);
    const auto expected = wire::frame_bytes(FrameType::control, answer);
    std::vector<std::byte> received;
    while (received.size() < expected.size()) {
        const auto part = reads.receive(100u << 10);
        ASSERT_FALSE(part.empty());
        received.insert(received.end(), part.begin(), part.end());
        loop_.poll();
    }
    EXPECT_EQ(received, expected);
    send(reads, request("more"));
    EXPECT_EQ(host_.requests.back(), "more");

    Peer& deaf = arrive();
    send(deaf, hello(For::administration));
    send(deaf, request("much"));
    host_.replies.pop_front();
    reply(answer);
    pass(milliseconds(5000));
    (void)deaf.receive();
    EXPECT_TRUE(deaf.ended());
}

}  // namespace
}  // namespace gpupool::test
