#include "protocol/messages/session.h"

#include <capnp/message.h>
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "common/quotas.h"
#include "common/units.h"
#include "protocol/messages/text.h"

namespace gpupool::messages {
namespace {

schema::SessionClass on_wire(SessionClass session_class) {
    return session_class == SessionClass::exclusive ? schema::SessionClass::EXCLUSIVE : schema::SessionClass::SHARED;
}

Error not_accepted(const std::string& what) {
    return Error{ErrorCode::invalid_input, what};
}

}  // namespace

void write_wishes(const Wishes& wishes, schema::SessionRequest::Builder out) {
    out.setGpus(static_cast<std::uint32_t>(wishes.gpus.value_or(0)));
    out.setSessionClass(wishes.session_class ? on_wire(*wishes.session_class) : schema::SessionClass::UNSET);
    out.setPriority(wishes.priority ? static_cast<std::int32_t>(*wishes.priority) : -1);
    out.setWaitMilliseconds(static_cast<std::uint32_t>(wishes.wait.count()));
}

Result<Wishes> read_wishes(schema::SessionRequest::Reader in) {
    Wishes wishes;
    if (in.getGpus() > Quotas::kMaxDevices) {
        return not_accepted(
            fmt::format("{} GPUs are asked for, and a server has {} at most", in.getGpus(), Quotas::kMaxDevices));
    }
    if (in.getGpus() != 0) {
        wishes.gpus = in.getGpus();
    }
    switch (in.getSessionClass()) {
        case schema::SessionClass::UNSET: break;
        case schema::SessionClass::SHARED: wishes.session_class = SessionClass::shared; break;
        case schema::SessionClass::EXCLUSIVE: wishes.session_class = SessionClass::exclusive; break;
        default: return not_accepted("a class is asked for that this server does not know");
    }
    if (in.getPriority() > static_cast<std::int32_t>(kMaxPriority) || in.getPriority() < -1) {
        return not_accepted(fmt::format("a priority is from 0 to {}, not {}", kMaxPriority, in.getPriority()));
    }
    if (in.getPriority() >= 0) {
        wishes.priority = static_cast<std::uint64_t>(in.getPriority());
    }
    wishes.wait = std::min(kMaxWait, std::chrono::milliseconds(in.getWaitMilliseconds()));
    return wishes;
}

void write_grant(const Grant& grant, schema::Grant::Builder out) {
    out.setTenant(grant.tenant.c_str());
    auto devices = out.initDevices(static_cast<unsigned>(grant.devices.size()));
    for (unsigned i = 0; i < grant.devices.size(); ++i) {
        devices[i].setDevice(grant.devices[i]);
        devices[i].setMemoryBytes(i < grant.memory_bytes.size() ? grant.memory_bytes[i] : 0);
    }
    out.setSessionClass(on_wire(grant.session_class));
    out.setPriority(static_cast<std::uint32_t>(grant.priority));
}

Result<Grant> read_grant(schema::Grant::Reader in) {
    Grant grant;
    GPUPOOL_TRY(read_text(in.getTenant(), "the tenant's name", grant.tenant));
    if (in.getDevices().size() > Quotas::kMaxDevices) {
        return too_long("the list of devices", Quotas::kMaxDevices);
    }
    for (const auto device : in.getDevices()) {
        grant.devices.push_back(device.getDevice());
        grant.memory_bytes.push_back(device.getMemoryBytes());
    }
    grant.session_class =
        in.getSessionClass() == schema::SessionClass::EXCLUSIVE ? SessionClass::exclusive : SessionClass::shared;
    grant.priority = in.getPriority();
    return grant;
}

std::string describe(const Grant& grant) {
    std::string numbers, memory;
    for (std::size_t i = 0; i < grant.devices.size(); ++i) {
        numbers += fmt::format("{}{}", i == 0 ? "" : ", ", grant.devices[i]);
    }
    const std::set<std::uint64_t> amounts(grant.memory_bytes.begin(), grant.memory_bytes.end());
    if (amounts.size() == 1 && *amounts.begin() != 0) {
        memory = fmt::format(" with {}{}", format_bytes(*amounts.begin()), grant.devices.size() > 1 ? " each" : "");
    } else if (amounts.size() > 1) {
        for (const std::uint64_t bytes : grant.memory_bytes) {
            memory += fmt::format("{}{}", memory.empty() ? " with " : ", ",
                                  bytes == 0 ? std::string("no quota") : format_bytes(bytes));
        }
    }
    return fmt::format("{} GPU{}{}{}, {}, priority {}{}", grant.devices.size(), grant.devices.size() == 1 ? "" : "s",
                       numbers.empty() ? "" : fmt::format(" ({} of the server)", numbers), memory,
                       name_of(grant.session_class), grant.priority,
                       grant.tenant.empty() ? "" : fmt::format(", as tenant {}", grant.tenant));
}

std::vector<std::byte> waiting_payload(const Waiting& waiting) {
    capnp::MallocMessageBuilder message;
    auto out = message.initRoot<schema::Control>().initWaiting();
    out.setPosition(static_cast<std::uint32_t>(waiting.position));
    out.setLength(static_cast<std::uint32_t>(waiting.length));
    out.setWhy(waiting.why.substr(0, kMaxSentenceBytes).c_str());
    return payload_of(message);
}

Result<Waiting> read_waiting(std::span<const std::byte> payload) {
    return read_message<schema::Control, Waiting>(payload, [](schema::Control::Reader control) -> Result<Waiting> {
        if (!control.isWaiting()) {
            return not_accepted("the message is not about waiting for room");
        }
        const auto in = control.getWaiting();
        Waiting waiting{in.getPosition(), in.getLength(), {}};
        GPUPOOL_TRY(read_text(in.getWhy(), "the reason", waiting.why, kMaxSentenceBytes));
        return waiting;
    });
}

}  // namespace gpupool::messages
