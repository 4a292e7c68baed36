// A client that waits for a place on a full server, whose part the test plays.
#include <capnp/message.h>
#include <capnp/serialize.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <thread>

#include "client/core/session/session.h"
#include "protocol/schema/session.capnp.h"
#include "protocol/transport/open.h"
#include "protocol/wire/handshake_io.h"
#include "tests/support/manual_clock.h"

namespace gpupool::test {
namespace {

using namespace std::chrono_literals;

// Refuses every client, because it is full.
class FullServer {
  public:
    FullServer() : listener_(*transport::listen(*transport::Endpoint::parse("127.0.0.1:0"))) {
        thread_ = std::thread([this] {
            while (const auto client = listener_->accept()) {
                (void)wire::read_frame(**client, client::kMaxWelcomeBytes, 30s);
                refuse(**client);
            }
        });
    }
    ~FullServer() {
        listener_->shutdown();
        thread_.join();
    }
    FullServer(const FullServer&) = delete;
    FullServer& operator=(const FullServer&) = delete;

    [[nodiscard]] std::string address() const { return listener_->address(); }
    [[nodiscard]] int refused() const { return refused_; }

  private:
    void refuse(transport::Connection& client) {
        capnp::MallocMessageBuilder message;
        message.initRoot<schema::Refused>().setReason(schema::Refused::Reason::CAPACITY);
        const auto words = capnp::messageToFlatArray(message);
        const auto bytes = words.asBytes();
        ++refused_;
        (void)wire::write_frame(client, wire::FrameType::refused,
                                std::as_bytes(std::span(bytes.begin(), bytes.size())));
    }

    std::unique_ptr<transport::Listener> listener_;
    std::atomic<int> refused_{0};
    std::thread thread_;
};

client::Config config_for(const FullServer& server, std::chrono::milliseconds wait_when_full) {
    client::Config config;
    config.server = server.address();
    config.transport = transport::Choice::tcp;
    config.wait_when_full = wait_when_full;
    return config;
}

TEST(FullServer, IsAskedOnceByAClientThatDoesNotWait) {
    const FullServer server;
    bool reached = false;
    const auto session = client::Session::open(config_for(server, 0ms), reached);
    ASSERT_FALSE(session);
    EXPECT_TRUE(reached);
    EXPECT_NE(session.error().message.find("GPUPOOL_WAIT_WHEN_FULL=10m"), std::string::npos) << session.error().message;
    EXPECT_EQ(server.refused(), 1);
}

TEST(FullServer, IsAskedAgainAfterGrowingPauses) {
    const FullServer server;
    ManualClock clock;
    bool reached = false;
    auto opened =
        std::async(std::launch::async, [&] { return client::Session::open(config_for(server, 4s), reached, clock); });
    int asked = 1;
    // Together 3 s: another pause, of 2 s, would end after the 4 s.
    for (const auto pause : {200ms, 400ms, 800ms, 1600ms}) {
        ASSERT_TRUE(clock.wait_for_wait_until(pause)) << "pause " << asked;
        EXPECT_EQ(server.refused(), asked++);
        clock.advance(pause);
    }
    const auto session = opened.get();
    ASSERT_FALSE(session);
    EXPECT_NE(session.error().message.find("has passed"), std::string::npos) << session.error().message;
    EXPECT_EQ(server.refused(), asked);
}

}  // namespace
}  // namespace gpupool::test
