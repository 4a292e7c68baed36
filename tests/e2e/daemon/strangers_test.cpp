// Peers that are no gpupool client, or a client that may not be admitted. Each gets a clear answer, and none affects
// other sessions.
#include <capnp/message.h>
#include <capnp/serialize.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <list>
#include <map>
#include <memory>
#include <random>
#include <thread>

#include "protocol/schema/control.capnp.h"
#include "protocol/schema/session.capnp.h"
#include "protocol/transport/shm/arrival.h"
#include "protocol/transport/shm/connection.h"
#include "protocol/transport/shm/local_socket.h"
#include "server/supervision/message_socket.h"
#include "tests/e2e/daemon/harness.h"
#include "tests/support/text.h"

namespace gpupool::test {
namespace {

namespace shm = transport::shm;

// Has one client with a session, to check that strangers do not disturb it.
class Strangers : public ::testing::Test {
  protected:
    void open(const std::string& settings = "") { daemon_ = std::make_unique<Daemon>(settings); }
    void expect_alive() {
        Client client(daemon_->address());
        client.send_hello({.token = "a-good-token"});
        EXPECT_FALSE(client.welcome().empty());
    }
    // Whether the daemon answers this administration connection's request, which it does after its Hello.
    static bool answers_status(Client& administrator) {
        capnp::MallocMessageBuilder message;
        message.initRoot<schema::Control>().setStatusRequest();
        const auto words = capnp::messageToFlatArray(message);
        const auto payload = std::as_bytes(std::span(words.asBytes().begin(), words.asBytes().size()));
        std::vector<std::byte> frame(wire::kHeaderBytes);
        wire::encode(
            {static_cast<std::uint32_t>(payload.size()), 0, 0, wire::FrameType::control, wire::crc32c(payload)},
            std::span(frame).first<wire::kHeaderBytes>());
        frame.insert(frame.end(), payload.begin(), payload.end());
        administrator.send_bytes(frame);
        const auto answer = administrator.read();
        EXPECT_TRUE(answer) << (answer ? "" : answer.error().message);
        return answer && answer->type == wire::FrameType::control;
    }
    // Whether this Hello asks for an administration connection, on which the daemon waits for a request.
    static bool is_for_administration(std::span<const std::byte> hello) {
        auto words = kj::heapArray<capnp::word>(hello.size() / sizeof(capnp::word));
        std::memcpy(words.begin(), hello.data(), words.asBytes().size());
        try {
            capnp::FlatArrayMessageReader reader(words);
            return reader.getRoot<schema::Hello>().getPurpose().isAdministration();
        } catch (const kj::Exception&) {
            return false;
        }
    }
    std::unique_ptr<Daemon> daemon_;
};

TEST_F(Strangers, GarbageIsRefused) {
    open();
    std::mt19937 random(1);
    std::vector<std::byte> garbage(10000);
    for (auto& byte : garbage) {
        byte = static_cast<std::byte>(random());
    }
    Client stranger(daemon_->address());
    stranger.send_bytes(garbage);
    EXPECT_FALSE(stranger.refusal().empty());
    EXPECT_TRUE(stranger.ended(milliseconds(3000)));
    expect_alive();
}

TEST_F(Strangers, GarbageHelloInAValidFrameIsRefused) {
    open();
    std::mt19937 random(2);
    for (int i = 0; i < 200; ++i) {
        // Valid before the mutation, since random bytes would be refused at the first pointer.
        auto payload = hello_payload({.environment = {{"CUDA_MODULE_LOADING", "LAZY"}}});
        for (int flips = 0; flips < 4; ++flips) {
            payload[random() % payload.size()] ^= static_cast<std::byte>(1u << random() % 8);
        }
        const transport::ConstBuffer body = payload;
        wire::FrameHeader header{static_cast<std::uint32_t>(payload.size()), 0, 0, wire::FrameType::hello,
                                 wire::crc32c(body)};
        std::array<std::byte, wire::kHeaderBytes> head;
        wire::encode(header, head);
        Client stranger(daemon_->address());
        stranger.send_bytes(head);
        stranger.send_bytes(payload);
        if (is_for_administration(payload)) {
            continue;
        }
        const auto answer = stranger.read();
        ASSERT_TRUE(answer) << answer.error().message;
        EXPECT_TRUE(answer->type == wire::FrameType::refused || answer->type == wire::FrameType::welcome);
    }
    expect_alive();
}

TEST_F(Strangers, TruncatedHelloTimesOut) {
    open("[limits]\nhandshake_timeout_ms = 500\n");
    auto payload = hello_payload({});
    wire::FrameHeader header{static_cast<std::uint32_t>(payload.size()), 0, 0, wire::FrameType::hello,
                             wire::crc32c(payload)};
    std::array<std::byte, wire::kHeaderBytes> head;
    wire::encode(header, head);
    Client hung_up(daemon_->address());
    hung_up.send_bytes(head);
    hung_up.send_bytes(std::span(payload).first(payload.size() / 2));
    hung_up.leave();
    Client waits(daemon_->address());
    waits.send_bytes(head);
    waits.send_bytes(std::span(payload).first(payload.size() / 2));
    EXPECT_NE(waits.refusal(milliseconds(2000)).find("within 500 ms"), std::string::npos);
    expect_alive();
}

TEST_F(Strangers, HelloThatClaims4GiBIsRefusedBeforeItIsRead) {
    open();
    std::array<std::byte, wire::kHeaderBytes> head;
    wire::encode({0xffffffffu, 0, 0, wire::FrameType::hello, 0}, head);
    Client stranger(daemon_->address());
    stranger.send_bytes(head);
    EXPECT_FALSE(stranger.refusal(milliseconds(2000)).empty());
    expect_alive();
}

TEST_F(Strangers, HelloAboveTheServersLimitIsRefused) {
    open("[limits]\nhello_bytes = 16384\n");
    Client stranger(daemon_->address());
    stranger.send_hello({.environment = {{"CUDA_X", std::string(20000, 'x')}}});
    EXPECT_NE(stranger.refusal().find("16384"), std::string::npos);
    expect_alive();
}

TEST_F(Strangers, SilentConnectionTimesOut) {
    open("[limits]\nhandshake_timeout_ms = 300\n");
    Client stranger(daemon_->address());
    EXPECT_NE(stranger.refusal(milliseconds(2000)).find("no Hello within 300 ms"), std::string::npos);
    EXPECT_TRUE(stranger.ended(milliseconds(3000)));
}

TEST_F(Strangers, SilentConnectionsDoNotBlockOthers) {
    open("[limits]\nhandshakes = 4\n");
    std::list<Client> silent;
    for (int i = 0; i < 12; ++i) {
        silent.emplace_back(daemon_->address());
    }
    EXPECT_NE(silent.front().refusal(milliseconds(2000)).find("sent nothing"), std::string::npos);
    EXPECT_TRUE(silent.front().ended(milliseconds(3000)));
    for (int i = 0; i < 8; ++i) {
        expect_alive();
    }
    EXPECT_FALSE(silent.back().ended(milliseconds(0)));
}

// A connection whose Hello has arrived keeps its place, for a second even after it was refused.
TEST_F(Strangers, RefusesConnectionsAboveTheLimit) {
    open("[limits]\nhandshakes = 1\nhello_bytes = 16384\n");
    Client refused(daemon_->address());
    refused.send_hello({.environment = {{"CUDA_X", std::string(20000, 'x')}}});
    EXPECT_NE(refused.refusal(), "");
    Client next(daemon_->address());
    EXPECT_NE(next.refusal().find("too many connections are waiting"), std::string::npos);
    ASSERT_TRUE(eventually([&] { return daemon_->status().ok(); }, milliseconds(4000)));
}

TEST_F(Strangers, SendingByteByByteDoesNotExtendTheTimeout) {
    open("[limits]\nhandshake_timeout_ms = 500\n");
    Client stranger(daemon_->address());
    const auto began = std::chrono::steady_clock::now();
    // One byte after the other, each 50 ms after the previous one, until the answer arrives.
    Result<wire::ReceivedFrame> answer = Error{ErrorCode::timed_out, "no answer"};
    for (int i = 0; i < 30 && !answer; ++i) {
        stranger.send_bytes(std::as_bytes(std::span("GPF1", 1)));
        answer = stranger.read(milliseconds(50));
    }
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->type, wire::FrameType::refused);
    EXPECT_LT(std::chrono::steady_clock::now() - began, milliseconds(1500));
}

// A local client that asks for a lane and whose ring looks as if it never read what was sent to it.
class NonReadingClient {
  public:
    explicit NonReadingClient(const std::string& address)
        : socket_(*shm::connect_socket(*shm::LocalAddress::abstract("gpupool/" + address))) {
        auto* const rings = reinterpret_cast<shm::RingControl*>(memory_.bytes().data());
        const auto hello = hello_payload({.lane = true});
        wire::FrameHeader header{static_cast<std::uint32_t>(hello.size()), 0, 0, wire::FrameType::hello,
                                 wire::crc32c(hello)};
        std::array<std::byte, wire::kHeaderBytes> head;
        wire::encode(header, head);
        const auto ring = memory_.bytes().subspan(shm::kControlBytes);
        std::copy(head.begin(), head.end(), ring.begin());
        std::copy(hello.begin(), hello.end(), ring.begin() + head.size());
        rings[0].written = head.size() + hello.size();
        rings[1].written = 16 * shm::kRingBytes;
        rings[1].read = rings[1].written - shm::kRingBytes;
        EXPECT_TRUE(supervision::make_socket_pair(room_, theirs_));
        const int descriptors[] = {theirs_.get(), theirs_.get(), memory_.descriptor()};
        greeted_ = shm::send_with_descriptors(socket_.get(), shm::kGreeting, descriptors).ok();
    }
    // False when the server had already closed the connection.
    [[nodiscard]] bool greeted() const { return greeted_; }

  private:
    bool greeted_ = false;
    shm::SharedMemory memory_ = *shm::SharedMemory::make("test", shm::kMemoryBytes);
    UniqueFd socket_, room_, theirs_;
};

TEST_F(Strangers, UnreadRefusalsDelayNoOtherConnection) {
    open("[workers]\nsilence_timeout_ms = 2000\n");
    Client program(daemon_->address());
    program.send_hello();
    program.welcome();
    const auto before = daemon_->sessions(1);
    std::list<NonReadingClient> neighbours;
    for (int i = 0; i < 8; ++i) {
        EXPECT_TRUE(neighbours.emplace_back(daemon_->address()).greeted());
    }
    std::list<Client> deaf;
    for (int i = 0; i < 8; ++i) {
        deaf.emplace_back(daemon_->address()).send_hello({.lane = true});
    }
    expect_alive();
    const auto after = daemon_->sessions(1);
    ASSERT_EQ(after.size(), 1u);
    EXPECT_EQ(after[0].id, before[0].id);
    EXPECT_EQ(daemon_->log().find("silent for too long"), std::string::npos);
}

TEST_F(Strangers, UnreadRefusalsDoNotStopAccepting) {
    open("[limits]\nhandshakes = 1\n");
    std::list<NonReadingClient> neighbours;  // the first keeps its place for a second
    for (int i = 0; i < 8; ++i) {
        neighbours.emplace_back(daemon_->address());
    }
    // A connection that is refused before its Hello was read does not keep its place either. The daemon has answered
    // all of them, so none takes a place later.
    ASSERT_TRUE(eventually([&] {
        const std::string log = daemon_->log();
        return test::count_of(": dropped, it has sent nothing", log) + test::count_of(": refused", log) ==
               neighbours.size();
    }));
    // The daemon still accepts connections.
    ASSERT_TRUE(eventually([&] { return daemon_->status().ok(); }, milliseconds(4000)));
    expect_alive();
}

TEST_F(Strangers, AdministrationConnectionsTakeNoPlaceOfOthers) {
    open("[limits]\nhandshakes = 2\nhandshake_timeout_ms = 1000\n");
    std::vector<std::unique_ptr<Client>> administrators;
    for (int i = 0; i < 6; ++i) {
        administrators.push_back(std::make_unique<Client>(daemon_->address()));
        administrators.back()->send_hello({.administration = true});
        EXPECT_TRUE(answers_status(*administrators.back()));
    }
    expect_alive();
    Client program(daemon_->address());
    program.send_hello({});
    EXPECT_FALSE(program.welcome().empty());
}

TEST_F(Strangers, FirstFrameMustBeAHello) {
    open();
    Client stranger(daemon_->address());
    std::array<std::byte, wire::kHeaderBytes> head;
    wire::encode({0, 0, 0, wire::FrameType::commands, wire::crc32c({})}, head);
    stranger.send_bytes(head);
    EXPECT_NE(stranger.refusal().find("Hello"), std::string::npos);
}

TEST_F(Strangers, WrongProtocolVersionIsRefused) {
    open();
    Client stranger(daemon_->address());
    stranger.send_hello({.protocol_version = 99});
    const auto message = stranger.refusal();
    EXPECT_NE(message.find("99"), std::string::npos) << message;
    EXPECT_NE(message.find("install the same version"), std::string::npos) << message;
}

// An administration connection sends no records, so the version of their format does not matter.
TEST_F(Strangers, AdministrationMayHaveAnotherProtocolVersion) {
    open();
    Client administrator(daemon_->address());
    administrator.send_hello({.protocol_version = 99, .administration = true});
    EXPECT_TRUE(answers_status(administrator));
}

TEST_F(Strangers, OtherFrameFormatIsRefusedWithBothVersions) {
    open();
    Client stranger(daemon_->address());
    std::array<std::byte, wire::kHeaderBytes> head;
    wire::encode({0, 0, 0, wire::FrameType::hello, wire::crc32c({})}, head);
    head[3] = std::byte{'2'};
    stranger.send_bytes(head);
    const auto message = stranger.refusal();
    EXPECT_NE(message.find("format 2"), std::string::npos) << message;
    EXPECT_NE(message.find("format 1"), std::string::npos) << message;
    EXPECT_NE(daemon_->log().find("frames of format 2"), std::string::npos);
    expect_alive();
}

TEST_F(Strangers, TokenMustBeOneOfTheServers) {
    open("[auth]\ntokens = [\"another-token\", \"a-good-token\"]\n");
    for (const char* token : {"a-good-toke", "a-good-token2", "A-good-token", "another-tokem"}) {
        Client stranger(daemon_->address());
        stranger.send_hello({.token = token});
        EXPECT_NE(stranger.refusal().find("not one of this server's"), std::string::npos) << token;
    }
    Client anonymous(daemon_->address());
    anonymous.send_hello();
    EXPECT_NE(anonymous.refusal().find("asks for a token"), std::string::npos);
    EXPECT_FALSE(daemon_->status("a-wrong-token").ok());
    EXPECT_TRUE(daemon_->status().ok()) << "its own user administers it without a token";
    EXPECT_TRUE(daemon_->status("another-token").ok());
    expect_alive();
}

TEST_F(Strangers, TokensAreReadFromAFile) {
    TemporaryFolder folder;
    const auto file = folder.write("tokens", "# a comment\n\na-good-token\r\n");
    open("[auth]\ntoken_file = \"" + file + "\"\n");
    EXPECT_FALSE(daemon_->status("a-wrong-token").ok());
    expect_alive();
}

TEST_F(Strangers, SessionsAreLimited) {
    open("[limits]\nsessions = 2\n");
    Client first(daemon_->address());
    first.send_hello();
    first.welcome();
    Client second(daemon_->address());
    second.send_hello();
    second.welcome();
    Client third(daemon_->address());
    third.send_hello();
    EXPECT_NE(third.refusal().find("all 2 sessions"), std::string::npos);
    first.leave();
    daemon_->sessions(1);
    expect_alive();
}

TEST_F(Strangers, ServersMemoryLimitPrevails) {
    open("[limits]\nsession_memory = \"1GiB\"\n");
    const std::map<std::string, std::uint64_t> asked = {{"greedy", 64ull << 30}, {"modest", 1u << 20}, {"silent", 0}};
    std::vector<std::unique_ptr<Client>> clients;
    for (const auto& [name, bytes] : asked) {
        clients.push_back(std::make_unique<Client>(daemon_->address()));
        clients.back()->send_hello({.process_name = name, .memory_bytes = bytes});
        clients.back()->welcome();
    }
    std::map<std::string, std::uint64_t> granted;
    for (const cli::SessionStatus& session : daemon_->sessions(asked.size())) {
        granted[session.process_name] = session.memory_quota_bytes;
    }
    const std::map<std::string, std::uint64_t> expected = {
        {"greedy", 1u << 30}, {"modest", 1u << 20}, {"silent", 1u << 30}};
    EXPECT_EQ(granted, expected);
}

}  // namespace
}  // namespace gpupool::test
