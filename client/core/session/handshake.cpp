#include "client/core/session/handshake.h"

#include <capnp/message.h>
#include <capnp/serialize.h>
#include <fmt/format.h>
#include <kj/exception.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>

#include "client/core/memory/address_window.h"
#include "client/error_text.h"
#include "common/driver_environment.h"
#include "common/files.h"
#include "common/log.h"
#include "common/printable.h"
#include "common/version.h"
#include "protocol/schema/session.capnp.h"

namespace gpupool::client {
namespace {

// Limits far above what a host has. A small Welcome could otherwise claim much more memory than it has bytes.
constexpr unsigned kMaxDevices = 128;
constexpr unsigned kMaxListed = 64u << 10;  // peers, error texts, attributes of a device
constexpr std::size_t kMaxSessionIdBytes = 64;
constexpr std::size_t kMaxSessionTokenBytes = 256;

std::string process_name() {
    std::ifstream file("/proc/self/comm");
    std::string name;
    std::getline(file, name);
    return name;
}

// Reads only the file. The C library's lookup may load modules and use the network, which is not acceptable in the
// application's process.
std::string user_name(std::uint32_t id) {
    constexpr std::size_t kMaxBytes = 1u << 20;
    const auto text = read_file("/etc/passwd", kMaxBytes);
    if (!text || !text->has_value()) {
        return {};
    }
    std::string_view rest = **text;
    const std::string number = fmt::to_string(id);
    while (!rest.empty()) {
        const std::string_view line = rest.substr(0, rest.find('\n'));
        rest.remove_prefix(std::min(line.size() + 1, rest.size()));
        // NAME:PASSWORD:ID:...
        const std::size_t name_end = line.find(':'), id_begin = line.find(':', name_end + 1) + 1;
        if (name_end != std::string_view::npos && id_begin != 0 &&
            line.substr(id_begin, line.find(':', id_begin) - id_begin) == number) {
            return std::string(line.substr(0, name_end));
        }
    }
    return {};
}

// A received message; the reader is valid as long as this object.
struct Message {
    std::vector<capnp::word> words;
    std::unique_ptr<capnp::FlatArrayMessageReader> reader;

    explicit Message(std::span<const std::byte> payload) : words((payload.size() + 7) / 8) {
        if (!payload.empty()) {
            std::memcpy(static_cast<void*>(words.data()), payload.data(), payload.size());
        }
        reader = std::make_unique<capnp::FlatArrayMessageReader>(kj::arrayPtr(words.data(), words.size()));
    }
};

Error invalid_welcome(const char* what) {
    return Error{ErrorCode::invalid_input, fmt::format("the server sent an invalid welcome: {}", what)};
}

// Checks the sizes before anything is copied.
Status check_size(schema::Welcome::Reader welcome) {
    if (welcome.getDevices().size() > kMaxDevices || welcome.getPeers().size() > kMaxListed ||
        welcome.getErrors().size() > kMaxListed || welcome.getSessionId().size() > kMaxSessionIdBytes ||
        welcome.getSessionToken().size() > kMaxSessionTokenBytes) {
        return invalid_welcome("it has too many entries");
    }
    for (const auto device : welcome.getDevices()) {
        if (device.getAttributes().size() > kMaxListed) {
            return invalid_welcome("it has too many entries");
        }
    }
    return {};
}

std::span<const std::byte> bytes_of(capnp::Data::Reader data) {
    return std::as_bytes(std::span(data.begin(), data.size()));
}

capnp::Data::Reader data_of(const std::vector<codec::Known>& list) {
    const auto bytes = codec::known_bytes(list);
    return {reinterpret_cast<const kj::byte*>(bytes.data()), bytes.size()};
}

// Agrees with the server on the calls and notices that both know. Fails if they are too few for a session.
Status agree(schema::Welcome::Reader welcome, Welcome& out) {
    const auto theirs = codec::read_knowledge(bytes_of(welcome.getCalls()), bytes_of(welcome.getNotices()));
    if (!theirs) {
        return invalid_welcome(theirs.error().message.c_str());
    }
    out.agreement = codec::Agreement(codec::own_knowledge(), *theirs);
    const codec::Ends ends{codec::Ends::Side::client, version(), out.server_version};
    GPUPOOL_TRY(out.agreement.check_core(ends));
    if (const std::string summary = out.agreement.summary(ends); !summary.empty()) {
        log::warn("{}", summary);
    }
    return {};
}

Result<Welcome> read_welcome(schema::Welcome::Reader welcome, const AddressRanges& offered) {
    constexpr std::size_t kMaxVersionBytes = 32;
    Welcome out;
    out.server_version = printable(welcome.getServerVersion().cStr(), kMaxVersionBytes);
    if (welcome.getProtocolVersion() != schema::PROTOCOL_VERSION) {
        return Error{ErrorCode::unsupported,
                     fmt::format("the server (gpupool {}) speaks gpupool protocol {}, this client (gpupool {}) speaks "
                                 "{}: install the same version of gpupool on both machines",
                                 out.server_version, welcome.getProtocolVersion(), version(),
                                 static_cast<std::uint32_t>(schema::PROTOCOL_VERSION))};
    }
    if (Status sized = check_size(welcome); !sized) {
        return sized.error();
    }
    GPUPOOL_TRY(agree(welcome, out));
    out.session_id = welcome.getSessionId();
    const auto token = std::as_bytes(std::span(welcome.getSessionToken().begin(), welcome.getSessionToken().size()));
    out.session_token.assign(token.begin(), token.end());
    out.max_lanes = welcome.getMaxLanes();
    for (const auto error : welcome.getErrors()) {
        error_text::learn(error.getCode(), error.getName().cStr(), error.getDescription().cStr());
    }
    out.devices = read_snapshot(welcome);  // may contain error codes learned just above
    out.window_base = welcome.getWindow().getBase();
    out.window_bytes = welcome.getWindow().getBytes();
    if (welcome.hasGrant()) {
        auto grant = messages::read_grant(welcome.getGrant());
        if (!grant) {
            return invalid_welcome(grant.error().message.c_str());
        }
        out.grant = std::move(*grant);
    }
    if (!AddressWindow::is_offered(offered, out.window_base, out.window_bytes)) {
        return invalid_welcome("its address range is not one that the client offered");
    }
    return out;
}

schema::ClientInfo::Builder introduce(schema::Hello::Builder hello, const Config& config) {
    hello.setProtocolVersion(schema::PROTOCOL_VERSION);
    hello.setToken(config.token.c_str());
    auto client = hello.initClient();
    char host[256] = {};
    gethostname(host, sizeof host - 1);
    client.setVersion(version());
    client.setHostname(host);
    client.setProcessName(process_name().c_str());
    client.setProcessId(static_cast<std::uint32_t>(getpid()));
    return client;
}

Status send(transport::Connection& connection, capnp::MessageBuilder& hello) {
    const kj::Array<capnp::word> words = capnp::messageToFlatArray(hello);
    return wire::write_frame(connection, wire::FrameType::hello,
                             std::as_bytes(std::span(words.asBytes().begin(), words.asBytes().size())));
}

schema::SessionRequest::Compression on_wire(wire::CompressionMode mode) {
    using On = schema::SessionRequest::Compression;
    switch (mode) {
        case wire::CompressionMode::never: return On::NEVER;
        case wire::CompressionMode::always: return On::ALWAYS;
        case wire::CompressionMode::when_it_pays: break;
    }
    return On::WHEN_IT_PAYS;
}

}  // namespace

Status send_lane_hello(transport::Connection& connection, const Config& config, const LaneTicket& ticket,
                       std::size_t index) {
    capnp::MallocMessageBuilder message;
    auto hello = message.initRoot<schema::Hello>();
    introduce(hello, config);
    auto lane = hello.initPurpose().initLane();
    lane.setSessionId(ticket.session_id.c_str());
    lane.setSessionToken({reinterpret_cast<const kj::byte*>(ticket.session_token.data()), ticket.session_token.size()});
    lane.setIndex(static_cast<std::uint32_t>(index));
    return send(connection, message);
}

void ask_for_memory(const Quotas& asked, schema::Quota::Builder quota) {
    quota.setMemoryBytes(asked.each_bytes.value_or(0));
    auto devices = quota.initDevices(static_cast<unsigned>(asked.of_device.size()));
    unsigned next = 0;
    for (const auto& [device, bytes] : asked.of_device) {
        devices[next].setDevice(static_cast<std::uint32_t>(device));
        devices[next++].setMemoryBytes(bytes);
    }
}

Status send_hello(transport::Connection& connection, const Config& config, const AddressRanges& offered) {
    capnp::MallocMessageBuilder message;
    auto hello = message.initRoot<schema::Hello>();
    auto client = introduce(hello, config);
    client.setUserId(static_cast<std::uint32_t>(getuid()));
    client.setUserName(user_name(static_cast<std::uint32_t>(getuid())).c_str());
    auto session = hello.initPurpose().initSession();
    ask_for_memory(config.memory, session.initQuota());
    messages::write_wishes({config.gpus, config.session_class, config.priority, config.wait_when_full}, session);
    session.setJob(config.job.c_str());
    session.setCompression(on_wire(config.compression));
    session.setCalls(data_of(codec::own_knowledge().calls));
    session.setNotices(data_of(codec::own_knowledge().notices));
    auto windows = session.initAddressWindows(static_cast<unsigned>(offered.size()));
    for (unsigned i = 0; i < offered.size(); ++i) {
        windows[i].setBase(offered[i].first);
        windows[i].setBytes(offered[i].second);
    }
    std::vector<std::pair<const char*, const char*>> variables;
    for (const char* name : kDriverVariables) {
        if (const char* value = std::getenv(name)) {
            variables.emplace_back(name, value);
        }
    }
    auto environment = session.initEnvironment(static_cast<unsigned>(variables.size()));
    for (unsigned i = 0; i < variables.size(); ++i) {
        environment[i].setName(variables[i].first);
        environment[i].setValue(variables[i].second);
    }
    return send(connection, message);
}

Status read_lane_answer(const wire::ReceivedFrame& frame) {
    if (frame.type == wire::FrameType::ack) {
        return {};
    }
    if (frame.type != wire::FrameType::refused) {
        return Error{ErrorCode::invalid_input, "the server did not answer with an acknowledgement"};
    }
    try {
        const Message message(frame.payload);
        return Error{ErrorCode::refused, std::string("the server refused: ") +
                                             message.reader->getRoot<schema::Refused>().getMessage().cStr()};
    } catch (const kj::Exception& exception) {
        return Error{ErrorCode::invalid_input,
                     std::string("the server's refusal cannot be read: ") + exception.getDescription().cStr()};
    }
}

Answer read_answer(const wire::ReceivedFrame& frame, const AddressRanges& offered) {
    try {
        const Message message(frame.payload);
        if (frame.type == wire::FrameType::refused) {
            const auto refused = message.reader->getRoot<schema::Refused>();
            return {refused.getReason() == schema::Refused::Reason::CAPACITY,
                    Error{ErrorCode::refused,
                          std::string("the server refused the session: ") + refused.getMessage().cStr()}};
        }
        if (frame.type != wire::FrameType::welcome) {
            return {false, Error{ErrorCode::invalid_input, "the server did not answer with a welcome"}};
        }
        return {false, read_welcome(message.reader->getRoot<schema::Welcome>(), offered)};
    } catch (const kj::Exception& exception) {
        return {false, Error{ErrorCode::invalid_input,
                             std::string("the server's welcome cannot be read: ") + exception.getDescription().cStr()}};
    }
}

}  // namespace gpupool::client
