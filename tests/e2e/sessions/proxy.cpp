#include "tests/e2e/sessions/proxy.h"

#include <array>
#include <stdexcept>
#include <utility>

#include "protocol/transport/endpoint.h"
#include "protocol/transport/tcp/connector.h"
#include "protocol/transport/tcp/listener.h"
#include "protocol/wire/handshake_io.h"

namespace gpupool::test {

FaultyProxy::FaultyProxy(const std::string& server, const transport::faulty::Faults& up,
                         const transport::faulty::Faults& down, Of bad)
    : server_(server), up_(up), down_(down), bad_(bad) {
    begin();
}

FaultyProxy::FaultyProxy(const std::string& server, Changes changes)
    : server_(server), up_{}, down_{}, bad_(Of::every_connection), changes_(std::move(changes)) {
    begin();
}

void FaultyProxy::begin() {
    auto listener = transport::tcp::listen(*transport::Endpoint::parse("127.0.0.1:0"));
    if (!listener) {
        throw std::runtime_error(listener.error().message);
    }
    listener_ = std::move(*listener);
    address_ = listener_->address();
    acceptor_ = std::thread([this] { accept(); });
}

FaultyProxy::~FaultyProxy() {
    listener_->shutdown();
    acceptor_.join();
    {
        const std::lock_guard lock(mutex_);
        over_ = true;
        for (const auto& connection : connections_) {
            connection->shutdown();
        }
    }
    for (std::thread& thread : pumps_) {
        thread.join();
    }
}

void FaultyProxy::accept() {
    while (auto accepted = listener_->accept()) {
        auto onward = transport::tcp::connect(*transport::Endpoint::parse(server_),
                                              transport::Clock::now() + std::chrono::seconds(5));
        if (!onward) {
            (*accepted)->shutdown();
            continue;
        }
        const std::lock_guard lock(mutex_);
        const bool bad = bad_ == Of::every_connection || connections_.empty();
        connections_.push_back(bad ? transport::faulty::wrap(std::move(*accepted), down_) : std::move(*accepted));
        transport::Connection& program = *connections_.back();
        connections_.push_back(bad ? transport::faulty::wrap(std::move(*onward), up_) : std::move(*onward));
        transport::Connection& server = *connections_.back();
        pumps_.emplace_back([this, &program, &server] { pump(program, server, true); });
        pumps_.emplace_back([this, &program, &server] { pump(server, program, false); });
    }
}

// Forwards the frames up to the Hello, or up to the answer to it.
void FaultyProxy::pass_handshake(transport::Connection& from, transport::Connection& to, bool is_up) {
    const auto& change = is_up ? changes_.hello : changes_.welcome;
    while (change) {
        auto frame = wire::read_frame(from, wire::kMaxPayloadBytes);
        if (!frame) {
            return;
        }
        if (frame->type == (is_up ? wire::FrameType::hello : wire::FrameType::welcome)) {
            change(frame->payload);
        }
        if (!wire::write_frame(to, frame->type, frame->payload) || frame->type != wire::FrameType::ack) {
            return;
        }
    }
}

void FaultyProxy::pump(transport::Connection& from, transport::Connection& to, bool is_up) {
    pass_handshake(from, to, is_up);
    std::vector<std::byte> buffer(256u << 10);
    while (true) {
        const auto count = from.receive(buffer);
        const transport::ConstBuffer data(buffer.data(), count ? *count : 0);
        if (!count || !to.send({&data, 1})) {
            break;
        }
    }
    // The end of one direction ends both, as a pulled cable would.
    from.shutdown();
    to.shutdown();
}

}  // namespace gpupool::test
