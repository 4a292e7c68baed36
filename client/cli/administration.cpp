#include "client/cli/administration.h"

#include <capnp/message.h>
#include <capnp/serialize.h>
#include <fmt/format.h>
#include <kj/exception.h>
#include <unistd.h>

#include <cstring>

#include "common/version.h"
#include "protocol/schema/control.capnp.h"
#include "protocol/schema/session.capnp.h"
#include "protocol/transport/open.h"
#include "protocol/wire/handshake_io.h"

namespace gpupool::cli {

namespace {

using transport::Clock;
using transport::Connection;

Status send_message(Connection& connection, wire::FrameType type, capnp::MessageBuilder& message) {
    const auto words = capnp::messageToFlatArray(message);
    const auto bytes = words.asBytes();
    return wire::write_frame(connection, type, std::as_bytes(std::span(bytes.begin(), bytes.size())));
}

Status send_hello(Connection& connection, const std::string& token) {
    capnp::MallocMessageBuilder message;
    auto hello = message.initRoot<schema::Hello>();
    hello.setProtocolVersion(schema::PROTOCOL_VERSION);
    hello.getPurpose().setAdministration();
    hello.setToken(token.c_str());
    auto client = hello.initClient();
    client.setVersion(version());
    client.setProcessName("gpupool");
    client.setProcessId(static_cast<std::uint32_t>(::getpid()));
    return send_message(connection, wire::FrameType::hello, message);
}

kj::Array<capnp::word> to_words(const std::vector<std::byte>& payload) {
    auto words = kj::heapArray<capnp::word>((payload.size() + sizeof(capnp::word) - 1) / sizeof(capnp::word));
    if (!payload.empty()) {
        std::memset(&words.back(), 0, sizeof(capnp::word));
        std::memcpy(words.begin(), payload.data(), payload.size());
    }
    return words;
}

ServerStatus read_status(const schema::ServerStatus::Reader& in) {
    ServerStatus status;
    status.version = in.getVersion().cStr();
    status.listen = in.getListen().cStr();
    status.driver = in.getDriver().cStr();
    status.driver_version = in.getDriverVersion();
    status.uptime_seconds = in.getUptimeSeconds();
    status.stock_wanted = in.getStock().getWanted();
    status.stock_ready = in.getStock().getReady();
    status.stock_contexts = in.getStock().getWithContext();
    for (const auto device : in.getDevices()) {
        status.devices.push_back({device.getIndex(), device.getName().cStr(), device.getUuid().cStr(),
                                  device.getMemoryUsed(), device.getMemoryTotal()});
    }
    for (const auto session : in.getSessions()) {
        status.sessions.push_back({session.getId().cStr(),
                                   session.getDevice(),
                                   session.getMemoryUsed(),
                                   session.getMemoryQuota(),
                                   session.getPeer().cStr(),
                                   session.getProcessName().cStr(),
                                   session.getProcessId(),
                                   session.getUserName().cStr(),
                                   session.getUserId(),
                                   session.getAgeSeconds(),
                                   session.getWorkerProcessId(),
                                   session.getState().cStr(),
                                   session.getMemoryDifference(),
                                   {}});
        for (const auto wait : session.getWaits()) {
            status.sessions.back().waits.emplace_back(wait.getReason().cStr(), wait.getEntries());
        }
    }
    return status;
}

Result<ServerStatus> read_answer(const wire::ReceivedFrame& frame, const std::string& server) {
    const auto words = to_words(frame.payload);
    try {
        capnp::FlatArrayMessageReader reader(words);
        if (frame.type == wire::FrameType::refused) {
            return Error{ErrorCode::refused, fmt::format("the server at {} refused: {}", server,
                                                         reader.getRoot<schema::Refused>().getMessage().cStr())};
        }
        const auto control = reader.getRoot<schema::Control>();
        if (frame.type == wire::FrameType::control && control.isStatus()) {
            return read_status(control.getStatus());
        }
    } catch (const kj::Exception&) {
        // Reported below, like any other invalid answer.
    }
    return Error{ErrorCode::invalid_input,
                 fmt::format("{} did not answer with a status: is a gpupoold of this version ({}) running there?",
                             server, version())};
}

}  // namespace

Result<ServerStatus> ask_status(const std::string& server, const std::string& token,
                                std::chrono::milliseconds timeout) {
    const auto deadline = Clock::now() + timeout;
    const auto endpoint = transport::Endpoint::parse(server, transport::kDefaultPort);
    if (!endpoint) {
        return endpoint.error();
    }
    const std::string address = endpoint->to_string();
    const auto choice = endpoint->is_path() ? transport::Choice::shm : transport::Choice::tcp;
    auto connection = transport::connect(*endpoint, choice, deadline);
    if (!connection && connection.error().code == ErrorCode::unresolved) {
        return connection.error();
    }
    if (!connection) {
        return Error{
            ErrorCode::unavailable,
            fmt::format("no server reachable at {}: check that gpupoold runs there, listens on that address, and "
                        "is not blocked by a firewall ({})",
                        address, connection.error().message)};
    }
    capnp::MallocMessageBuilder request;
    request.initRoot<schema::Control>().setStatusRequest();
    auto sent = send_hello(**connection, token);
    if (sent) {
        sent = send_message(**connection, wire::FrameType::control, request);
    }
    // Even if sending failed: a server that refuses may have closed already, and its refusal is still there to read.
    const auto frame = wire::read_frame(**connection, wire::kMaxPayloadBytes, deadline);
    if (!frame) {
        return Error{frame.error().code, fmt::format("the server at {} did not answer: is it gpupoold? ({})", address,
                                                     sent ? frame.error().message : sent.error().message)};
    }
    auto status = read_answer(*frame, address);
    if (status) {
        status->server = address;
    }
    return status;
}

}  // namespace gpupool::cli
