// Why a session waits or is refused, for people.
#include <fmt/format.h>

#include <algorithm>

#include "common/units.h"
#include "server/policy/pool.h"

namespace gpupool::policy {
namespace {

constexpr std::size_t kMostDescribed = 8;  // devices in one message

constexpr std::string_view kHint = "wait for one to end (GPUPOOL_WAIT_WHEN_FULL), or ask for less (GPUPOOL_MEMORY)";

}  // namespace

std::string Pool::describe(std::size_t device, const Marks& reserved) const {
    const Device& facts = devices_[device];
    if (is_exclusive(device)) {
        return fmt::format("device {} ({}) belongs to an exclusive session", device, facts.name);
    }
    std::string text = fmt::format("of the {} of device {} ({}) {} are promised to running sessions",
                                   format_bytes(capacity(device)), device, facts.name, format_bytes(promised_[device]));
    if (jobs_on_[device] > 0) {
        text += fmt::format(" ({} job{})", jobs_on_[device], jobs_on_[device] == 1 ? "" : "s");
    }
    if (reserved[device]) {
        text += ", and the rest is kept for a session ahead in the queue";
    }
    return text;
}

std::string Pool::explain_room(const Entry& entry, const Marks& reserved) const {
    std::string wanted;
    std::vector<std::size_t> devices;
    if (const auto job = job_of(entry.request)) {
        devices = seen_among(job->devices, entry.request.visible);
        wanted = "another process of the job takes a context on each of its GPUs";
    } else {
        const Demand& demand = std::get<Demand>(entry.demand);
        devices = demand.whole ? all_devices() : demand.exact;
        const std::string_view kind = demand.session_class == SessionClass::exclusive ? " for itself alone" : "";
        const std::size_t gpus = demand.whole ? demand.gpus : demand.exact.size();
        std::uint64_t quota = 0, bytes = 0;
        for (const std::size_t device : devices) {
            if (need(device, demand.quota_bytes[device]) > bytes) {
                quota = demand.quota_bytes[device];
                bytes = need(device, quota);
            }
        }
        wanted = quota == 0 ? fmt::format("the session needs {} GPU{}{}", gpus, gpus == 1 ? "" : "s", kind)
                            : fmt::format("a session with a quota of {} takes {} with its context, on {} GPU{}{}",
                                          format_bytes(quota), format_bytes(bytes), gpus, gpus == 1 ? "" : "s", kind);
    }
    std::string text;
    for (std::size_t i = 0; i < std::min(devices.size(), kMostDescribed); ++i) {
        text += (text.empty() ? "" : "; ") + describe(devices[i], reserved);
    }
    if (devices.size() > kMostDescribed) {
        text += fmt::format("; and {} more devices", devices.size() - kMostDescribed);
    }
    return fmt::format("{}, and {}: {}", text, wanted, kHint);
}

std::string Pool::explain_tenant(const Entry& entry) const {
    const std::string& tenant = entry.request.tenant;
    const Effective& limits = limits_of(tenant);
    const TenantUse use = use_of(tenant);
    std::string has = fmt::format("tenant {} has {}", tenant, use.sessions);
    has += limits.sessions == kNoLimit ? " sessions" : fmt::format(" of {} sessions", limits.sessions);
    if (limits.total_gpus != kNoLimit) {
        has += fmt::format(", {} of {} GPUs", use.gpus, limits.total_gpus);
    }
    if (limits.total_memory_bytes != kNoLimit) {
        has += fmt::format(", {} of {} of device memory", format_bytes(use.memory_bytes),
                           format_bytes(limits.total_memory_bytes));
    }
    return has + ", the most that its limits allow beside what waits: wait for one of its sessions to end";
}

std::string Pool::explain(const Entry& entry, const Verdict& verdict, const Marks& reserved) const {
    switch (verdict.obstacle) {
        case Obstacle::none: return {};
        case Obstacle::impossible: return std::get<std::string>(entry.demand);
        case Obstacle::server:
            return fmt::format("all {} sessions of the server are in use (limits.sessions)", policy_->rules().sessions);
        case Obstacle::tenant: return explain_tenant(entry);
        case Obstacle::job:
            return job_of(entry.request) == nullptr
                       ? std::string("the first process of its job waits")
                       : fmt::format("the job has {} sessions already, the most that may share one quota",
                                     kMaxJobSessions);
        case Obstacle::room: break;
    }
    return explain_room(entry, reserved);
}

}  // namespace gpupool::policy
