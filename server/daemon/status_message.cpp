#include "server/daemon/status_message.h"

#include <capnp/serialize.h>

#include <algorithm>
#include <cstring>

#include "common/printable.h"
#include "common/version.h"
#include "protocol/schema/control.capnp.h"
#include "protocol/wire/frame.h"
#include "server/daemon/tenancy.h"

namespace gpupool::daemon {

namespace {

// A session's texts are bounded by printable(), so this many sessions fit into a frame's payload.
constexpr std::size_t kMaxSessionBytes = 1024;
constexpr std::size_t kMaxListedWaiting = 256;
constexpr std::size_t kMaxListedSessions = wire::kMaxPayloadBytes / kMaxSessionBytes - 256 - kMaxListedWaiting;

std::uint64_t seconds(TimeSource::Duration duration) {
    return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::seconds>(duration).count());
}

std::uint64_t age_seconds(std::int64_t started_unix_ms) {
    return static_cast<std::uint64_t>(std::max<std::int64_t>(0, unix_now_ms() - started_unix_ms) / 1000);
}

// The device on which the session uses most memory; if it uses none, the first device that it sees.
std::size_t device_of(const Session& session, const std::vector<ProbedDevice>& devices) {
    const auto& uuids = session.report.device_uuids;
    const auto uuid_of = [](const ProbedDevice& device) { return printable(device.uuid); };
    std::size_t device = 0;
    std::uint64_t most = 0;
    for (std::size_t i = 0; i < devices.size(); ++i) {
        const std::uint64_t used = used_on(session, uuid_of(devices[i]));
        if (used > most || (most == 0 && !uuids.empty() && uuids.front() == uuid_of(devices[i]))) {
            device = i;
            most = used;
        }
    }
    return device;
}

void describe_session(const Session& session, const std::vector<ProbedDevice>& devices,
                      schema::SessionStatus::Builder out) {
    const auto& report = session.report;
    std::uint64_t total = 0;
    for (const auto bytes : report.memory_used_bytes) {
        total += bytes;
    }
    const policy::Grant& grant = session.place.grant();
    out.setId(report.session_id.c_str());
    out.setTenant(grant.tenant.c_str());
    out.setJob(grant.job.find(kOwnJob) == std::string::npos ? grant.job.c_str() : "");
    out.setSessionClass(std::string(name_of(grant.session_class)).c_str());
    out.setPriority(static_cast<std::uint32_t>(grant.priority));
    out.setBytesIn(report.bytes_in);
    out.setBytesOut(report.bytes_out);
    out.setHostname(report.client.hostname.c_str());
    auto shares = out.initDevices(static_cast<unsigned>(grant.seen.size()));
    for (unsigned i = 0; i < grant.seen.size(); ++i) {
        shares[i].setDevice(static_cast<std::uint32_t>(grant.seen[i]));
        shares[i].setMemoryUsed(used_on(session, printable(devices[grant.seen[i]].uuid)));
        shares[i].setMemoryQuota(session.place.taken() ? session.place.quota_bytes(grant.seen[i]) : 0);
    }
    out.setDevice(static_cast<std::uint32_t>(device_of(session, devices)));
    out.setMemoryUsed(total);
    out.setMemoryQuota(session.place.taken() ? session.place.largest_quota_bytes() : report.memory_quota_bytes);
    out.setPeer(report.peer.c_str());
    out.setProcessName(report.client.process_name.c_str());
    out.setProcessId(report.client.process_id);
    out.setUserName(report.client.user_name.c_str());
    out.setUserId(report.client.user_id);
    out.setAgeSeconds(age_seconds(report.started_unix_ms));
    out.setWorkerProcessId(static_cast<std::uint32_t>(session.process));
    out.setMemoryDifference(session.memory_difference.shown_bytes);
    out.setState(session.life.over() ? "ending" : report.state.c_str());
    auto waits = out.initWaits(static_cast<unsigned>(report.waits.size()));
    for (unsigned i = 0; i < report.waits.size(); ++i) {
        waits[i].setReason(report.waits[i].first.c_str());
        waits[i].setEntries(report.waits[i].second);
    }
}

}  // namespace

std::vector<std::byte> make_status_message(const ServerFacts& server,
                                           const std::map<std::string, std::unique_ptr<Session>>& sessions,
                                           const std::vector<WaitingRequest>& waiting) {
    const auto shown = [&](const Session& session) {
        return !session.in_stock && (!server.tenant || session.place.grant().tenant == *server.tenant);
    };
    capnp::MallocMessageBuilder message;
    auto status = message.initRoot<schema::Control>().initStatus();
    status.setVersion(version());
    status.setListen(server.address.c_str());
    status.setDriver(server.driver.path.c_str());
    status.setDriverVersion(server.driver.version);
    status.setUptimeSeconds(seconds(server.uptime));
    auto devices = status.initDevices(static_cast<unsigned>(server.driver.devices.size()));
    for (unsigned i = 0; i < server.driver.devices.size(); ++i) {
        const auto& device = server.driver.devices[i];
        std::uint64_t used = 0;
        bool on_it = false;
        for (const auto& [id, session] : sessions) {
            const auto& seen = session->place.grant().seen;
            const bool counts = !server.tenant || shown(*session);
            used += counts ? used_on(*session, printable(device.uuid)) : 0;
            on_it = on_it || (shown(*session) && std::find(seen.begin(), seen.end(), i) != seen.end());
        }
        const NvmlReadings::Device reading =
            server.nvml == nullptr ? NvmlReadings::Device() : server.nvml->device(device.uuid);
        devices[i].setUtilization(static_cast<std::int16_t>(reading.utilization_percent));
        devices[i].setTemperature(static_cast<std::int16_t>(reading.temperature_celsius));
        devices[i].setMemoryPromised(server.tenant ? 0 : server.pool->promised_bytes(i));
        devices[i].setWaiting(static_cast<std::uint32_t>(waiting.size()));
        devices[i].setSessionClass(!on_it ? "" : server.pool->is_exclusive(i) ? "exclusive" : "shared");
        devices[i].setIndex(i);
        devices[i].setName(printable(device.name).c_str());
        devices[i].setUuid(printable(device.uuid).c_str());
        devices[i].setMemoryUsed(used);
        devices[i].setMemoryTotal(device.memory_total_bytes);
    }
    std::vector<const Session*> taken;
    std::uint32_t ready = 0;
    bool with_context = false;
    for (const auto& [id, session] : sessions) {
        if (shown(*session)) {
            taken.push_back(session.get());
        } else if (!session->in_stock) {
            continue;
        } else if (session->life.state() == WorkerState::ready) {
            ++ready;
            with_context = with_context || session->report.holds_context;
        }
    }
    status.getStock().setWanted(static_cast<std::uint32_t>(server.stock_wanted));
    status.getStock().setReady(ready);
    status.getStock().setWithContext(with_context);
    taken.resize(std::min(taken.size(), kMaxListedSessions));
    auto list = status.initSessions(static_cast<unsigned>(taken.size()));
    for (unsigned i = 0; i < taken.size(); ++i) {
        describe_session(*taken[i], server.driver.devices, list[i]);
    }
    auto queue = status.initWaiting(static_cast<unsigned>(std::min(waiting.size(), kMaxListedWaiting)));
    for (unsigned i = 0; i < queue.size(); ++i) {
        auto entry = queue[i];
        entry.setPosition(static_cast<std::uint32_t>(waiting[i].position));
        entry.setTenant(waiting[i].tenant.c_str());
        entry.setPeer(waiting[i].peer.c_str());
        entry.setProcessName(waiting[i].process_name.c_str());
        entry.setWaitedSeconds(waiting[i].waited_seconds);
        entry.setWhy(waiting[i].why.c_str());
    }
    const auto words = capnp::messageToFlatArray(message);
    const auto bytes = words.asBytes();
    std::vector<std::byte> out(bytes.size());
    std::memcpy(out.data(), bytes.begin(), bytes.size());
    return out;
}

}  // namespace gpupool::daemon
