#include "tests/conformance/transports.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <random>

#include "protocol/transport/open.h"
#include "protocol/transport/shm/connector.h"
#include "protocol/transport/shm/listener.h"
#include "protocol/transport/tcp/connector.h"
#include "protocol/transport/tcp/listener.h"
#include "tests/support/transport/faulty/connection.h"
#include "tests/support/transport/faulty/listener.h"
#include "tests/support/transport/inproc/connector.h"
#include "tests/support/transport/inproc/listener.h"

namespace gpupool::testing {
namespace {

using transport::Clock;
using transport::Endpoint;
using transport::faulty::Faults;

Meeting meet_tcp() {
    auto listener = transport::tcp::listen({"127.0.0.1", 0});
    EXPECT_TRUE(listener.ok()) << (listener ? "" : listener.error().message);
    const auto endpoint = Endpoint::parse((*listener)->address());
    EXPECT_TRUE(endpoint.ok());
    return {std::move(*listener), [endpoint = *endpoint] {
                return transport::tcp::connect(endpoint, Clock::now() + std::chrono::seconds(5));
            }};
}

Meeting meet_inproc() {
    auto listener = std::make_unique<transport::inproc::InprocListener>(64u << 10);
    auto* raw = listener.get();
    return {std::move(listener), [raw] { return transport::inproc::connect(*raw); }};
}

// A listener at a path that is unique to this test process.
Meeting meet_shm() {
    static std::atomic<int> serial{0};
    const std::string name = fmt::format("gpupool-test-{}-{}", ::getpid(), ++serial);
    auto listener = transport::shm::listen_at_name(name);
    EXPECT_TRUE(listener.ok()) << (listener ? "" : listener.error().message);
    return {std::move(*listener), [name] { return transport::shm::connect_to_name(name); }};
}

// Returns the server's end as a worker that took it over from its daemon has it. Between processes of one host its
// class differs from that of the accepted connection.
class AdoptingListener final : public transport::Listener {
  public:
    explicit AdoptingListener(std::unique_ptr<transport::Listener> inner) : inner_(std::move(inner)) {}
    Result<std::unique_ptr<transport::Connection>> accept() override {
        auto accepted = inner_->accept();
        if (!accepted) {
            return accepted;
        }
        // Receives the descriptors that the client sent beside its data; no data has been read yet.
        if (const Status greeted = (*accepted)->send({}); !greeted) {
            return greeted.error();
        }
        std::vector<UniqueFd> descriptors;
        for (const int descriptor : (*accepted)->descriptors()) {
            descriptors.emplace_back(::dup(descriptor));
        }
        return transport::adopt(std::move(descriptors));
    }
    void shutdown() noexcept override { inner_->shutdown(); }
    [[nodiscard]] std::string address() const override { return inner_->address(); }

  private:
    const std::unique_ptr<transport::Listener> inner_;
};

Meeting meet_shm_adopted() {
    auto meeting = meet_shm();
    return {std::make_unique<AdoptingListener>(std::move(meeting.listener)), std::move(meeting.connect)};
}

Transport faulty(const Transport& plain, const std::string& suffix, const Faults& faults) {
    return {plain.name + suffix, [plain, faults]() -> Meeting {
                auto meeting = plain.meet();
                return {std::make_unique<transport::faulty::FaultyListener>(std::move(meeting.listener), faults),
                        [connect = meeting.connect, faults]() -> Result<std::unique_ptr<transport::Connection>> {
                            auto connection = connect();
                            if (!connection) {
                                return connection;
                            }
                            auto other = faults;
                            other.seed += 1000;
                            std::unique_ptr<transport::Connection> wrapped =
                                transport::faulty::wrap(std::move(*connection), other);
                            return wrapped;
                        }};
            }};
}

}  // namespace

Ends Transport::connected_pair() const {
    auto meeting = meet();
    auto here = meeting.connect();
    auto there = meeting.listener->accept();
    EXPECT_TRUE(here.ok()) << (here ? "" : here.error().message);
    EXPECT_TRUE(there.ok()) << (there ? "" : there.error().message);
    return {std::move(*here), std::move(*there)};
}

std::vector<Transport> plain_transports() {
    return {{"tcp", meet_tcp}, {"inproc", meet_inproc}, {"shm", meet_shm}};
}

std::vector<Transport> all_transports() {
    Faults split;
    split.split_bytes = 700;
    Faults delay;
    delay.delay = std::chrono::microseconds(300);
    std::vector<Transport> all;
    for (const auto& plain : plain_transports()) {
        all.push_back(plain);
        all.push_back(faulty(plain, "_split", split));
        all.push_back(faulty(plain, "_delay", delay));
    }
    all.push_back({"shm_adopted", meet_shm_adopted});
    return all;
}

std::vector<Transport> transports(const std::vector<std::string>& names) {
    std::vector<Transport> chosen = all_transports();
    std::erase_if(chosen,
                  [&](const Transport& transport) { return std::ranges::find(names, transport.name) == names.end(); });
    EXPECT_EQ(chosen.size(), names.size());
    return chosen;
}

std::vector<Transport> channel_transports() {
    return transports({"tcp", "inproc", "shm", "shm_adopted", "tcp_split", "inproc_delay"});
}

std::vector<std::byte> pattern(std::size_t bytes, std::uint64_t seed) {
    std::vector<std::byte> data(bytes);
    std::mt19937_64 random(seed);
    for (std::size_t at = 0; at < bytes; at += 8) {
        const std::uint64_t word = random();
        std::memcpy(data.data() + at, &word, std::min<std::size_t>(8, bytes - at));
    }
    return data;
}

void expect_exchange(transport::Connection& from, transport::Connection& to) {
    const auto data = pattern(100, 1);
    const transport::ConstBuffer buffers[] = {data};
    ASSERT_TRUE(from.send(buffers).ok());
    std::vector<std::byte> received(data.size());
    ASSERT_TRUE(transport::receive_exactly(to, received).ok());
    EXPECT_EQ(received, data);
}

}  // namespace gpupool::testing
