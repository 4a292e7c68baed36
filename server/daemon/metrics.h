// The server's metrics in Prometheus' text format. docs/metrics.md lists them.
//
// A sum over sessions is never a metric of the same name: what a tenant has used, with the sessions that have ended,
// has names of its own. Series are bounded: devices, at most EventCounts::kMaxTenants tenants, and kMaxSessionSeries
// sessions.
//
// Ownership: values. Threads: any; the caller takes the snapshot on the loop. Errors: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/daemon/event_counts.h"
#include "server/policy/usage.h"

namespace gpupool::daemon {

struct MetricsSnapshot {
    struct Device {
        std::string uuid;
        std::uint64_t total_bytes = 0;
        std::uint64_t used_bytes = 0;  // by sessions
        std::uint64_t promised_bytes = 0;
        std::optional<int> utilization_percent;
        std::optional<int> temperature_celsius;
    };
    struct Session {
        std::string id;
        std::string tenant;
        std::vector<std::pair<std::size_t, std::uint64_t>> memory_bytes;  // by the server's numbers of devices
        policy::UsageAmounts used;
    };

    std::string version;
    std::vector<Device> devices;
    std::vector<Session> sessions;
    std::map<std::string, policy::UsageAmounts> tenants;  // what each has used
    EventCounts events;
    std::size_t queue_length = 0;
};

// Sessions with series of their own, the first by id. All count in the series of tenants and devices.
inline constexpr std::size_t kMaxSessionSeries = 1000;

std::string metrics_text(const MetricsSnapshot& snapshot);

}  // namespace gpupool::daemon
