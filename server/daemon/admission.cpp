#include "server/daemon/admission.h"

#include <capnp/serialize.h>
#include <fmt/format.h>
#include <kj/exception.h>

#include <algorithm>
#include <cstring>

#include "common/digest.h"
#include "common/driver_environment.h"
#include "common/printable.h"
#include "server/supervision/message_socket.h"

namespace gpupool::daemon {

namespace {

// An Assignment has to fit into a socket's buffer before anybody reads it (at least 200 KiB on Linux).
constexpr std::size_t kMaxCopyBytes = 128u << 10;
constexpr unsigned kMaxEnvironmentEntries = 64;
constexpr std::size_t kMaxEnvironmentValueBytes = 4096;
constexpr std::size_t kMaxSessionIdBytes = 64;
constexpr std::size_t kMaxSessionTokenBytes = 256;

std::string_view view(capnp::Text::Reader text) {
    return {text.cStr(), text.size()};
}

Refusal refusal(schema::Refused::Reason reason, std::string message) {
    return Refusal{reason, std::move(message)};
}

// Not the credential itself, which a folder's name would give away.
std::string tenant_of(std::string_view token) {
    Digester digester;
    for (const std::string_view part : {std::string_view("gpupool tenant\n"), token}) {
        digester.add(std::as_bytes(std::span(part.data(), part.size())));
    }
    constexpr std::size_t kDigits = 32;
    return to_string(digester.finish()).substr(0, kDigits);
}

std::variant<Guest, Refusal> check(const schema::Hello::Reader& hello, const AdmissionRules& rules) {
    Guest guest;
    // Who administers sends no records.
    if (hello.getProtocolVersion() != schema::PROTOCOL_VERSION && !hello.getPurpose().isAdministration()) {
        return refusal(schema::Refused::Reason::PROTOCOL,
                       fmt::format("this server speaks gpupool protocol {}, the client speaks {}: install the same "
                                   "version of gpupool on both machines (the server has {})",
                                   static_cast<std::uint32_t>(schema::PROTOCOL_VERSION), hello.getProtocolVersion(),
                                   GPUPOOL_VERSION));
    }
    if (!rules.tokens.empty() && !token_matches(view(hello.getToken()), rules.tokens)) {
        return refusal(schema::Refused::Reason::CREDENTIALS,
                       hello.getToken().size() == 0
                           ? "this server asks for a token: set GPUPOOL_TOKEN, or token in the client's configuration"
                           : "the token is not one of this server's: check GPUPOOL_TOKEN, or token in the client's "
                             "configuration");
    }
    const auto client = hello.getClient();
    guest.client.version = printable(view(client.getVersion()), 32);
    guest.client.hostname = printable(view(client.getHostname()));
    guest.client.process_name = printable(view(client.getProcessName()));
    guest.client.process_id = client.getProcessId();
    guest.client.user_name = printable(view(client.getUserName()), 64);
    guest.client.user_id = client.getUserId();
    if (hello.getPurpose().isAdministration()) {
        guest.purpose = Purpose::administration;
        return guest;
    }
    if (hello.getPurpose().isResume()) {
        return refusal(schema::Refused::Reason::CAPACITY,
                       "this server keeps no broken sessions: start the program again");
    }
    if (hello.getPurpose().isLane()) {
        const auto asked = hello.getPurpose().getLane();
        const auto token = asked.getSessionToken();
        if (asked.getSessionId().size() > kMaxSessionIdBytes || token.size() > kMaxSessionTokenBytes) {
            return refusal(schema::Refused::Reason::PROTOCOL, "no session has a name or a token of that size");
        }
        guest.purpose = Purpose::lane;
        guest.lane.session_id = view(asked.getSessionId());
        guest.lane.session_token.assign(reinterpret_cast<const char*>(token.begin()), token.size());
        guest.lane.index = asked.getIndex();
        return guest;
    }
    if (!hello.getPurpose().isSession()) {
        return refusal(
            schema::Refused::Reason::PROTOCOL,
            "the client asks for something this server does not know: install the same version of gpupool on "
            "both machines");
    }
    guest.tenant =
        rules.tokens.empty() || rules.one_tenant ? std::string("anonymous") : tenant_of(view(hello.getToken()));
    guest.memory_bytes = hello.getPurpose().getSession().getQuota().getMemoryBytes();
    return guest;
}

}  // namespace

bool secret_matches(std::string_view given, std::string_view secret) {
    if (secret.empty()) {
        return false;
    }
    // Every byte of the given one is looked at, whatever the first ones were.
    unsigned difference = static_cast<unsigned>(given.size() != secret.size());
    for (std::size_t i = 0; i < given.size(); ++i) {
        difference |= static_cast<unsigned char>(given[i]) ^ static_cast<unsigned char>(secret[i % secret.size()]);
    }
    return difference == 0;
}

bool token_matches(std::string_view given, const std::vector<std::string>& tokens) {
    unsigned matches = 0;
    for (const auto& token : tokens) {
        matches |= static_cast<unsigned>(secret_matches(given, token));
    }
    return matches != 0;
}

std::variant<Guest, Refusal> examine_hello(std::span<const std::byte> payload, const AdmissionRules& rules) {
    const auto malformed = [](std::string_view why) {
        return refusal(schema::Refused::Reason::PROTOCOL, fmt::format("the Hello cannot be read: {}", why));
    };
    if (payload.empty() || payload.size() % sizeof(capnp::word) != 0) {
        return malformed("its size is not that of a message");
    }
    // Copied because a message must lie on a word boundary, and since the Assignment needs it later.
    auto words = kj::heapArray<capnp::word>(payload.size() / sizeof(capnp::word));
    std::memcpy(words.begin(), payload.data(), payload.size());
    try {
        capnp::FlatArrayMessageReader reader(words, supervision::bounded_reader(payload.size()));
        auto verdict = check(reader.getRoot<schema::Hello>(), rules);
        if (auto* guest = std::get_if<Guest>(&verdict)) {
            guest->hello = kj::mv(words);
            // What the worker gets is a copy: made here once, so that what cannot be copied is refused here.
            capnp::MallocMessageBuilder trial;
            copy_hello(*guest, trial.initRoot<schema::Hello>());
            if (trial.sizeInWords() * sizeof(capnp::word) > kMaxCopyBytes) {
                return malformed("it holds too much");
            }
        }
        return verdict;
    } catch (const kj::Exception& exception) {
        return malformed(exception.getDescription().cStr());
    }
}

void copy_hello(const Guest& guest, schema::Hello::Builder out) {
    capnp::FlatArrayMessageReader reader(guest.hello,
                                         supervision::bounded_reader(guest.hello.size() * sizeof(capnp::word)));
    const auto hello = reader.getRoot<schema::Hello>();
    out.setProtocolVersion(hello.getProtocolVersion());
    auto client = out.initClient();
    client.setVersion(guest.client.version.c_str());
    client.setHostname(guest.client.hostname.c_str());
    client.setProcessName(guest.client.process_name.c_str());
    client.setProcessId(guest.client.process_id);
    client.setUserName(guest.client.user_name.c_str());
    client.setUserId(guest.client.user_id);
    if (!hello.getPurpose().isSession()) {
        out.getPurpose().setAdministration();
        return;
    }
    const auto asked = hello.getPurpose().getSession();
    auto session = out.getPurpose().initSession();
    session.setQuota(asked.getQuota());
    session.setAddressWindows(asked.getAddressWindows());
    session.setCompression(asked.getCompression());
    session.setCalls(asked.getCalls());
    session.setNotices(asked.getNotices());
    std::vector<schema::EnvironmentEntry::Reader> kept;
    for (const auto entry : asked.getEnvironment()) {
        if (kept.size() < kMaxEnvironmentEntries && is_driver_variable(view(entry.getName())) &&
            entry.getValue().size() <= kMaxEnvironmentValueBytes) {
            kept.push_back(entry);
        }
    }
    auto environment = session.initEnvironment(static_cast<unsigned>(kept.size()));
    for (unsigned i = 0; i < kept.size(); ++i) {
        environment.setWithCaveats(i, kept[i]);
    }
}

}  // namespace gpupool::daemon
