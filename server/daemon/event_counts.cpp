#include "server/daemon/event_counts.h"

#include <algorithm>

namespace gpupool::daemon {

std::string_view name_of(EndCause cause) {
    switch (cause) {
        case EndCause::client: return "client_left";
        case EndCause::administrator: return "administrator";
        case EndCause::limit: return "limit";
        case EndCause::stop: return "server_stop";
        case EndCause::failure: break;
    }
    return "worker_failed";
}

TenantEvents& EventCounts::of(const std::string& tenant) {
    const bool by_name = tenants_.contains(tenant) || tenants_.size() < kMaxTenants;
    return tenants_[by_name ? tenant : kOtherTenants];
}

void EventCounts::note_admitted(const std::string& tenant, std::chrono::milliseconds waited) {
    ++of(tenant).admitted;
    const std::int64_t ms = std::max<std::int64_t>(waited.count(), 0);
    const auto bucket = std::ranges::lower_bound(WaitTimes::kBoundsMs, ms) - WaitTimes::kBoundsMs.begin();
    ++waits_.counts[static_cast<std::size_t>(bucket)];
    waits_.sum_ms += static_cast<std::uint64_t>(ms);
}

void EventCounts::note_refused(const std::string& tenant) {
    ++of(tenant.empty() ? kUnknownTenant : tenant).refused;
}

void EventCounts::note_ended(const std::string& tenant, EndCause cause) {
    ++of(tenant).ended[static_cast<std::size_t>(cause)];
}

}  // namespace gpupool::daemon
