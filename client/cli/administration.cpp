#include "client/cli/administration.h"

#include <capnp/message.h>
#include <capnp/serialize.h>
#include <fmt/format.h>
#include <kj/exception.h>
#include <unistd.h>

#include <cstring>
#include <optional>
#include <span>
#include <utility>
#include <variant>

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
    const auto known = [](std::int16_t value) { return value < 0 ? std::nullopt : std::optional<int>(value); };
    for (const auto device : in.getDevices()) {
        DeviceStatus& out = status.devices.emplace_back();
        out.index = device.getIndex();
        out.name = device.getName().cStr();
        out.uuid = device.getUuid().cStr();
        out.memory_used_bytes = device.getMemoryUsed();
        out.memory_total_bytes = device.getMemoryTotal();
        out.memory_promised_bytes = device.getMemoryPromised();
        out.utilization_percent = known(device.getUtilization());
        out.temperature_celsius = known(device.getTemperature());
        out.waiting = device.getWaiting();
        out.session_class = device.getSessionClass().cStr();
    }
    for (const auto session : in.getSessions()) {
        SessionStatus& out = status.sessions.emplace_back();
        out.id = session.getId().cStr();
        out.device = session.getDevice();
        out.memory_used_bytes = session.getMemoryUsed();
        out.memory_quota_bytes = session.getMemoryQuota();
        out.peer = session.getPeer().cStr();
        out.process_name = session.getProcessName().cStr();
        out.process_id = session.getProcessId();
        out.user_name = session.getUserName().cStr();
        out.user_id = session.getUserId();
        out.age_seconds = session.getAgeSeconds();
        out.worker_process_id = session.getWorkerProcessId();
        out.state = session.getState().cStr();
        out.memory_difference_bytes = session.getMemoryDifference();
        for (const auto wait : session.getWaits()) {
            out.waits.emplace_back(wait.getReason().cStr(), wait.getEntries());
        }
        out.tenant = session.getTenant().cStr();
        out.job = session.getJob().cStr();
        out.session_class = session.getSessionClass().cStr();
        out.priority = session.getPriority();
        for (const auto share : session.getDevices()) {
            out.devices.push_back({share.getDevice(), share.getMemoryUsed(), share.getMemoryQuota()});
        }
        out.bytes_in = session.getBytesIn();
        out.bytes_out = session.getBytesOut();
        out.hostname = session.getHostname().cStr();
    }
    for (const auto waiting : in.getWaiting()) {
        status.queue.push_back({waiting.getPosition(), waiting.getTenant().cStr(), waiting.getPeer().cStr(),
                                waiting.getProcessName().cStr(), waiting.getWaitedSeconds(), waiting.getWhy().cStr()});
    }
    return status;
}

Error not_understood(const std::string& server, const char* what) {
    return Error{ErrorCode::invalid_input,
                 fmt::format("{} did not answer with {}: is a gpupoold of this version ({}) running there?", server,
                             what, version())};
}

// The server's refusal, if the frame is one.
std::optional<Error> refusal_in(const wire::ReceivedFrame& frame, const std::string& server) {
    if (frame.type != wire::FrameType::refused) {
        return std::nullopt;
    }
    const auto words = to_words(frame.payload);
    try {
        capnp::FlatArrayMessageReader reader(words);
        return Error{ErrorCode::refused, fmt::format("the server at {} refused: {}", server,
                                                     reader.getRoot<schema::Refused>().getMessage().cStr())};
    } catch (const kj::Exception&) {
        return Error{ErrorCode::refused, fmt::format("the server at {} refused", server)};
    }
}

Result<ServerStatus> read_status_frame(const wire::ReceivedFrame& frame, const std::string& server) {
    const auto words = to_words(frame.payload);
    try {
        capnp::FlatArrayMessageReader reader(words);
        const auto control = reader.getRoot<schema::Control>();
        if (frame.type == wire::FrameType::control && control.isStatus()) {
            return read_status(control.getStatus());
        }
    } catch (const kj::Exception&) {
        // Reported below, like any other invalid answer.
    }
    return not_understood(server, "a status");
}

struct Exchanged {
    std::string server;  // as it was addressed
    wire::ReceivedFrame answer;
};

// Sends a Control frame's payload and returns the frame that comes back; a refusal is an error.
Result<Exchanged> exchange(const std::string& server, const std::string& token, std::span<const std::byte> request,
                           std::chrono::milliseconds timeout) {
    const auto deadline = Clock::now() + timeout;
    const auto endpoint = transport::Endpoint::parse(server, transport::kDefaultPort);
    if (!endpoint) {
        return endpoint.error();
    }
    const std::string address = endpoint->to_string();
    const auto choice = endpoint->is_path() ? transport::Choice::shm : transport::Choice::automatic;
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
    auto sent = send_hello(**connection, token);
    if (sent) {
        sent = wire::write_frame(**connection, wire::FrameType::control, request);
    }
    // Even if sending failed: a server that refuses may have closed already, and its refusal is still there to read.
    auto frame = wire::read_frame(**connection, wire::kMaxPayloadBytes, deadline);
    if (!frame) {
        return Error{frame.error().code, fmt::format("the server at {} did not answer: is it gpupoold? ({})", address,
                                                     sent ? frame.error().message : sent.error().message)};
    }
    if (auto refusal = refusal_in(*frame, address)) {
        return std::move(*refusal);
    }
    return Exchanged{address, std::move(*frame)};
}

}  // namespace

Result<ServerStatus> ask_status(const std::string& server, const std::string& token,
                                std::chrono::milliseconds timeout) {
    capnp::MallocMessageBuilder request;
    request.initRoot<schema::Control>().setStatusRequest();
    const auto words = capnp::messageToFlatArray(request);
    const auto bytes = words.asBytes();
    const auto exchanged = exchange(server, token, std::as_bytes(std::span(bytes.begin(), bytes.size())), timeout);
    if (!exchanged) {
        return exchanged.error();
    }
    auto status = read_status_frame(exchanged->answer, exchanged->server);
    if (status) {
        status->server = exchanged->server;
    }
    return status;
}

Result<messages::AdministrationAnswer> administer(const std::string& server, const std::string& token,
                                                  const messages::AdministrationRequest& request,
                                                  std::chrono::milliseconds timeout) {
    const auto exchanged = exchange(server, token, messages::request_payload(request), timeout);
    if (!exchanged) {
        return exchanged.error();
    }
    if (exchanged->answer.type != wire::FrameType::control) {
        return not_understood(exchanged->server, "an administrator's answer");
    }
    auto answer = messages::read_answer(exchanged->answer.payload);
    if (!answer) {
        return answer.error().within(fmt::format("the server at {}", exchanged->server));
    }
    if (const auto* failed = std::get_if<messages::AdministrationError>(&*answer)) {
        return Error{ErrorCode::refused, failed->message};
    }
    return answer;
}

}  // namespace gpupool::cli
