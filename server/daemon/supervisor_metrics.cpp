// The Supervisor's metrics.
#include <utility>

#include "common/printable.h"
#include "common/version.h"
#include "server/daemon/metrics.h"
#include "server/daemon/supervisor.h"

namespace gpupool::daemon {

namespace {

std::optional<int> if_known(int reading) {
    return reading < 0 ? std::nullopt : std::optional(reading);
}

}  // namespace

std::string Supervisor::metrics() {
    const policy::Moment now = tenancy_.now();
    MetricsSnapshot snapshot;
    snapshot.version = version();
    snapshot.tenants = tenancy_.usage().totals(now);
    snapshot.events = events_;
    snapshot.queue_length = places_.waiters().size();
    const auto& devices = parts_.driver.devices;
    for (std::size_t i = 0; i < devices.size(); ++i) {
        const NvmlReadings::Device reading = nvml_ == nullptr ? NvmlReadings::Device() : nvml_->device(devices[i].uuid);
        snapshot.devices.push_back({printable(devices[i].uuid), devices[i].memory_total_bytes, 0,
                                    places_.pool().promised_bytes(i), if_known(reading.utilization_percent),
                                    if_known(reading.temperature_celsius)});
    }
    for (const auto& [id, session] : sessions_) {
        if (session->in_stock) {
            continue;
        }
        const policy::Grant& grant = session->place.grant();
        MetricsSnapshot::Session shown{id, grant.tenant, {}, tenancy_.usage().of_session(id, now)};
        for (const std::size_t device : grant.seen) {
            const std::uint64_t bytes = used_on(*session, snapshot.devices[device].uuid);
            shown.memory_bytes.emplace_back(device, bytes);
            snapshot.devices[device].used_bytes += bytes;
        }
        snapshot.sessions.push_back(std::move(shown));
    }
    return metrics_text(snapshot);
}

}  // namespace gpupool::daemon
