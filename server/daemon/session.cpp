#include "server/daemon/session.h"

#include <fmt/format.h>
#include <kj/exception.h>
#include <signal.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <utility>

#include "common/log.h"
#include "common/printable.h"
#include "protocol/schema/supervision.capnp.h"

namespace gpupool::daemon {

namespace {

constexpr unsigned kMaxReportedDevices = 1024;
constexpr std::size_t kMaxReportedWaits = 32;
constexpr std::size_t kMaxReportedTokenBytes = 256;
constexpr std::size_t kMaxLanes = 64;  // bits of Session::lanes_taken

std::string text(capnp::Text::Reader reader, std::size_t max_bytes = 128) {
    return printable({reader.cStr(), reader.size()}, max_bytes);
}

Status fill_random(void* out, std::size_t bytes) {
    // Requests of up to 256 bytes are never cut short once the kernel's random pool is initialised.
    if (::getrandom(out, bytes, 0) != static_cast<ssize_t>(bytes)) {
        return system_error("getrandom", errno);
    }
    return {};
}

}  // namespace

Result<WorkerReport> read_report(const supervision::Message& message) {
    try {
        capnp::FlatArrayMessageReader reader(message.words, supervision::bounded_reader(message.bytes()));
        const auto in = reader.getRoot<schema::Report>();
        WorkerReport report;
        report.session_id = text(in.getSessionId());
        report.state = text(in.getState(), 16);
        report.peer = text(in.getPeer());
        report.client.version = text(in.getClient().getVersion(), 32);
        report.client.hostname = text(in.getClient().getHostname());
        report.client.process_name = text(in.getClient().getProcessName());
        report.client.process_id = in.getClient().getProcessId();
        report.client.user_name = text(in.getClient().getUserName(), 64);
        report.client.user_id = in.getClient().getUserId();
        report.memory_quota_bytes = in.getMemoryQuotaBytes();
        report.started_unix_ms = in.getStartedUnixMilliseconds();
        const auto token = in.getSessionToken();
        report.session_token.assign(reinterpret_cast<const char*>(token.begin()), token.size());
        report.max_lanes = in.getMaxLanes();
        report.holds_context = in.getContext();
        report.job = text(in.getAccount().getJob());
        report.account_slot = in.getAccount().getSlot();
        report.idle_ms = in.getIdleMilliseconds();
        report.bytes_in = in.getBytesIn();
        report.bytes_out = in.getBytesOut();
        if (in.hasGrant()) {
            auto grant = messages::read_grant(in.getGrant());
            if (!grant) {
                return grant.error();
            }
            report.grant = std::move(*grant);
        }
        if (report.session_id.empty() || in.getMemoryUsed().size() > kMaxReportedDevices ||
            in.getDeviceUuids().size() > kMaxReportedDevices || in.getWaits().size() > kMaxReportedWaits ||
            token.size() > kMaxReportedTokenBytes) {
            return Error{ErrorCode::invalid_input, "a worker's report has no session id or too many entries"};
        }
        for (const auto bytes : in.getMemoryUsed()) {
            report.memory_used_bytes.push_back(bytes);
        }
        for (const auto wait : in.getWaits()) {
            report.waits.emplace_back(text(wait.getReason(), 32), wait.getEntries());
        }
        for (const auto uuid : in.getDeviceUuids()) {
            report.device_uuids.push_back(text(uuid));
        }
        return report;
    } catch (const kj::Exception& exception) {
        return Error{ErrorCode::invalid_input,
                     fmt::format("a worker's report cannot be read: {}", exception.getDescription().cStr())};
    }
}

bool MemoryDifference::note(std::uint64_t its_snapshot, std::int64_t bytes) {
    constexpr std::int64_t kTolerance = 32 << 20;
    // A program may allocate between NVML's answer and its worker's report, so a few differences mean nothing.
    constexpr std::size_t kReadings = 5;
    snapshot = its_snapshot;
    const bool beyond = std::abs(bytes) > kTolerance;
    const bool goes_on = beyond && readings != 0 && (bytes > 0) == (least_bytes > 0);
    readings = goes_on ? readings + 1 : beyond ? 1 : 0;
    least_bytes = !beyond ? 0 : goes_on && std::abs(least_bytes) < std::abs(bytes) ? least_bytes : bytes;
    shown_bytes = readings >= kReadings ? least_bytes : 0;
    return shown_bytes != 0 && !std::exchange(logged, true);
}

void Session::kill_now() const {
    if (child) {
        // The child is not reaped yet, so its process id and group id cannot have been reused.
        ::kill(-process, SIGKILL);
        ::kill(process, SIGKILL);
    } else if (pidfd.get() >= 0) {
        ::syscall(SYS_pidfd_send_signal, pidfd.get(), SIGKILL, nullptr, 0);
    }
}

void Session::send_stop(const std::string& reason) {
    if (!link.open()) {
        return;
    }
    capnp::MallocMessageBuilder message;
    message.initRoot<schema::ToWorker>().setStop(reason.c_str());
    if (const auto sent = link.send(message); !sent) {  // usually because it just exited
        log::debug("session {}: cannot send its worker the order to stop: {}", report.session_id, sent.error().message);
    }
}

void Session::send_limits(const supervision::SessionLimits& wanted) {
    if (limits == wanted || !link.open()) {
        return;
    }
    capnp::MallocMessageBuilder message;
    supervision::write(wanted, message.initRoot<schema::ToWorker>().initLimits());
    if (const auto sent = link.send(message); !sent) {  // tried again with its next report
        log::debug("session {}: cannot send its worker the limits: {}", report.session_id, sent.error().message);
        return;
    }
    limits = wanted;
}

std::optional<Refusal> Session::hand_lane(const LaneClaim& claim, const std::vector<int>& connection) {
    const auto taken = [&] { return (lanes_taken >> claim.index & 1) != 0; };
    if (claim.index >= std::min(report.max_lanes, kMaxLanes) || taken()) {
        return Refusal{schema::Refused::Reason::CAPACITY,
                       fmt::format("lane {} is taken or not allowed: the session may open {} of them, each once",
                                   claim.index, report.max_lanes)};
    }
    if (life.over() || !link.open() || connection.empty()) {
        return Refusal{schema::Refused::Reason::SHUTTING_DOWN, "the session is ending and accepts no further lane"};
    }
    capnp::MallocMessageBuilder message;
    message.initRoot<schema::ToWorker>().initLane().setIndex(claim.index);
    if (const auto sent = link.send(message, connection); !sent) {
        return Refusal{schema::Refused::Reason::INTERNAL, "the session's worker does not accept the lane"};
    }
    lanes_taken |= std::uint64_t{1} << claim.index;
    return std::nullopt;
}

std::uint64_t used_on(const Session& session, const std::string& uuid) {
    const auto& report = session.report;
    std::uint64_t used = 0;
    for (std::size_t i = 0; i < std::min(report.device_uuids.size(), report.memory_used_bytes.size()); ++i) {
        used += report.device_uuids[i] == uuid ? report.memory_used_bytes[i] : 0;
    }
    return used;
}

UniqueFd open_process(pid_t process) {
    return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, process, 0)));
}

Result<std::string> make_session_id() {
    std::uint64_t value = 0;
    GPUPOOL_TRY(fill_random(&value, sizeof(value)));
    return fmt::format("{:016x}", value);
}

Result<std::vector<unsigned char>> make_session_token() {
    std::vector<unsigned char> token(32);
    GPUPOOL_TRY(fill_random(token.data(), token.size()));
    return token;
}

}  // namespace gpupool::daemon
