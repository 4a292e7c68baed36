#include "server/daemon/admission.h"

#include <capnp/serialize.h>
#include <fmt/format.h>
#include <kj/exception.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstring>

#include "common/driver_environment.h"
#include "common/printable.h"
#include "common/version.h"
#include "server/supervision/message_socket.h"

namespace gpupool::daemon {

namespace {

// An Assignment must fit into a socket's buffer before the worker reads it (at least 200 KiB on Linux).
constexpr std::size_t kMaxCopyBytes = 128u << 10;
constexpr unsigned kMaxEnvironmentEntries = 64;
constexpr std::size_t kMaxEnvironmentValueBytes = 4096;
constexpr std::size_t kMaxSessionIdBytes = 64;
constexpr std::size_t kMaxSessionTokenBytes = 256;
constexpr std::size_t kMaxJobBytes = 64;

std::string_view view(capnp::Text::Reader text) {
    return {text.cStr(), text.size()};
}

Refusal refusal(schema::Refused::Reason reason, std::string message) {
    return Refusal{reason, std::move(message)};
}

Result<std::string> make_job_name(const std::string& tenant, std::string_view job) {
    if (job.size() > kMaxJobBytes ||
        !std::all_of(job.begin(), job.end(), [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; })) {
        return Error{ErrorCode::invalid_input,
                     fmt::format("GPUPOOL_JOB must consist of at most {} letters and digits", kMaxJobBytes)};
    }
    return job.empty() ? std::string() : tenant + "/" + std::string(job);
}

Quotas requested(const schema::Quota::Reader& quota) {
    Quotas quotas;
    if (quota.getMemoryBytes() != 0) {
        quotas.each_bytes = quota.getMemoryBytes();
    }
    for (const auto device : quota.getDevices()) {
        if (device.getMemoryBytes() != 0) {
            quotas.of_device[device.getDevice()] = device.getMemoryBytes();
        }
    }
    return quotas;
}

std::variant<Admission, Refusal> check(const schema::Hello::Reader& hello, const Identify& identify,
                                       std::optional<uid_t> local_user) {
    Admission admission;
    // An administration connection sends no records, so their version does not matter to it.
    if (hello.getProtocolVersion() != schema::PROTOCOL_VERSION && !hello.getPurpose().isAdministration()) {
        return refusal(
            schema::Refused::Reason::PROTOCOL,
            fmt::format("this server speaks gpupool protocol {}, the client speaks {}: install the same "
                        "version of gpupool on both machines (the server has {})",
                        static_cast<std::uint32_t>(schema::PROTOCOL_VERSION), hello.getProtocolVersion(), version()));
    }
    const bool administers = hello.getPurpose().isAdministration();
    const bool is_own = local_user && (*local_user == 0 || *local_user == ::geteuid());
    if (administers && is_own && hello.getToken().size() == 0) {
        admission.identity = {policy::Role::administrator, fmt::format("user {}", *local_user)};
    } else if (!identify) {
        admission.identity = {policy::Role::anonymous, std::string(policy::kAnonymous)};
    } else if (auto identity = identify(view(hello.getToken()))) {
        admission.identity = std::move(*identity);
    } else {
        return refusal(schema::Refused::Reason::CREDENTIALS,
                       hello.getToken().size() == 0
                           ? "this server asks for a token: set GPUPOOL_TOKEN, or token in the client's configuration"
                           : "the token is not one of this server's: check GPUPOOL_TOKEN, or token in the client's "
                             "configuration");
    }
    if (admission.identity.role == policy::Role::administrator && !administers) {
        return refusal(schema::Refused::Reason::CREDENTIALS,
                       "an administrator's token starts no sessions: use a tenant's");
    }
    const auto client = hello.getClient();
    admission.client.version = printable(view(client.getVersion()), 32);
    admission.client.hostname = printable(view(client.getHostname()));
    admission.client.process_name = printable(view(client.getProcessName()));
    admission.client.process_id = client.getProcessId();
    admission.client.user_name = printable(view(client.getUserName()), 64);
    admission.client.user_id = client.getUserId();
    if (administers) {
        admission.purpose = Purpose::administration;
        return admission;
    }
    if (hello.getPurpose().isLane()) {
        const auto asked = hello.getPurpose().getLane();
        const auto token = asked.getSessionToken();
        if (asked.getSessionId().size() > kMaxSessionIdBytes || token.size() > kMaxSessionTokenBytes) {
            return refusal(schema::Refused::Reason::PROTOCOL, "the session id or token of the lane is too long");
        }
        admission.purpose = Purpose::lane;
        admission.lane.session_id = view(asked.getSessionId());
        admission.lane.session_token.assign(reinterpret_cast<const char*>(token.begin()), token.size());
        admission.lane.index = asked.getIndex();
        return admission;
    }
    if (!hello.getPurpose().isSession()) {
        return refusal(schema::Refused::Reason::PROTOCOL,
                       "the client's request is unknown to this server: install the same version of gpupool on "
                       "both machines");
    }
    const auto job = make_job_name(admission.identity.name, view(hello.getPurpose().getSession().getJob()));
    if (!job) {
        return refusal(schema::Refused::Reason::PROTOCOL, job.error().message);
    }
    admission.job = *job;
    admission.memory = requested(hello.getPurpose().getSession().getQuota());
    auto wishes = messages::read_wishes(hello.getPurpose().getSession());
    if (!wishes) {
        return refusal(schema::Refused::Reason::PROTOCOL, wishes.error().message);
    }
    admission.wishes = *wishes;
    return admission;
}

}  // namespace

bool secret_matches(std::string_view given, std::string_view secret) {
    if (secret.empty()) {
        return false;
    }
    // Compares every byte, wherever the first difference is, so that the time reveals nothing.
    unsigned difference = static_cast<unsigned>(given.size() != secret.size());
    for (std::size_t i = 0; i < given.size(); ++i) {
        difference |= static_cast<unsigned char>(given[i]) ^ static_cast<unsigned char>(secret[i % secret.size()]);
    }
    return difference == 0;
}

std::variant<Admission, Refusal> examine_hello(std::span<const std::byte> payload, const Identify& identify,
                                               std::optional<uid_t> local_user) {
    const auto malformed = [](std::string_view why) {
        return refusal(schema::Refused::Reason::PROTOCOL, fmt::format("the Hello cannot be read: {}", why));
    };
    if (payload.empty() || payload.size() % sizeof(capnp::word) != 0) {
        return malformed("its size is not a multiple of 8 bytes");
    }
    // Copied because a message must lie on a word boundary, and because the Assignment needs it later.
    auto words = kj::heapArray<capnp::word>(payload.size() / sizeof(capnp::word));
    std::memcpy(words.begin(), payload.data(), payload.size());
    try {
        capnp::FlatArrayMessageReader reader(words, supervision::bounded_reader(payload.size()));
        auto verdict = check(reader.getRoot<schema::Hello>(), identify, local_user);
        if (auto* admission = std::get_if<Admission>(&verdict)) {
            admission->hello = kj::mv(words);
            // The worker receives a copy. Make one here, to refuse a Hello that cannot be copied.
            capnp::MallocMessageBuilder trial;
            copy_hello(*admission, trial.initRoot<schema::Hello>());
            if (trial.sizeInWords() * sizeof(capnp::word) > kMaxCopyBytes) {
                return malformed("its contents are too large");
            }
        }
        return verdict;
    } catch (const kj::Exception& exception) {
        return malformed(exception.getDescription().cStr());
    }
}

void copy_hello(const Admission& admission, schema::Hello::Builder out) {
    capnp::FlatArrayMessageReader reader(admission.hello,
                                         supervision::bounded_reader(admission.hello.size() * sizeof(capnp::word)));
    const auto hello = reader.getRoot<schema::Hello>();
    out.setProtocolVersion(hello.getProtocolVersion());
    auto client = out.initClient();
    client.setVersion(admission.client.version.c_str());
    client.setHostname(admission.client.hostname.c_str());
    client.setProcessName(admission.client.process_name.c_str());
    client.setProcessId(admission.client.process_id);
    client.setUserName(admission.client.user_name.c_str());
    client.setUserId(admission.client.user_id);
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
        const bool replaced = admission.visible_devices && view(entry.getName()) == "CUDA_VISIBLE_DEVICES";
        if (!replaced && kept.size() < kMaxEnvironmentEntries && is_driver_variable(view(entry.getName())) &&
            entry.getValue().size() <= kMaxEnvironmentValueBytes) {
            kept.push_back(entry);
        }
    }
    const unsigned added = admission.visible_devices ? 1 : 0;
    auto environment = session.initEnvironment(static_cast<unsigned>(kept.size()) + added);
    for (unsigned i = 0; i < kept.size(); ++i) {
        environment.setWithCaveats(i, kept[i]);
    }
    if (admission.visible_devices) {
        auto entry = environment[static_cast<unsigned>(kept.size())];
        entry.setName("CUDA_VISIBLE_DEVICES");
        entry.setValue(admission.visible_devices->c_str());
    }
}

}  // namespace gpupool::daemon
