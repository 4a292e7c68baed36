// Counts of what happened to sessions since the daemon began, for its metrics: admissions and refusals, how long
// sessions waited in the queue, and how sessions ended.
//
// Ownership: values. Threads: one at a time. Errors: none. Counts never become less.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "server/policy/usage.h"

namespace gpupool::daemon {

// How a session ended.
enum class EndCause : std::uint8_t {
    client,         // its client left, or was lost
    administrator,  // an administrator ended it
    limit,          // one of its limits did
    stop,           // the server stopped
    failure,        // its worker failed
};
inline constexpr std::size_t kEndCauses = 5;
// "client_left", "administrator", "limit", "server_stop", "worker_failed".
std::string_view name_of(EndCause cause);

struct TenantEvents {
    std::uint64_t admitted = 0;
    std::uint64_t refused = 0;
    std::array<std::uint64_t, kEndCauses> ended{};  // by EndCause
};

struct WaitTimes {
    // Upper bounds of the histogram's buckets; the last bucket has none.
    static constexpr std::array<std::int64_t, 8> kBoundsMs{100,    1000,    5000,    30'000,
                                                           60'000, 300'000, 900'000, 3'600'000};

    std::array<std::uint64_t, kBoundsMs.size() + 1> counts{};  // of each bucket alone
    std::uint64_t sum_ms = 0;
};

class EventCounts {
  public:
    // Tenants that are counted by name. Those that come later are counted together, as kOtherTenants.
    static constexpr std::size_t kMaxTenants = policy::UsageMeter::kMaxTotals;
    static constexpr const char* kOtherTenants = policy::UsageMeter::kOtherTenants;
    static constexpr const char* kUnknownTenant = "(unknown)";

    void note_admitted(const std::string& tenant, std::chrono::milliseconds waited);
    // `tenant`: empty if it is not known.
    void note_refused(const std::string& tenant);
    void note_ended(const std::string& tenant, EndCause cause);

    [[nodiscard]] const std::map<std::string, TenantEvents>& tenants() const { return tenants_; }
    [[nodiscard]] const WaitTimes& waits() const { return waits_; }

  private:
    TenantEvents& of(const std::string& tenant);

    std::map<std::string, TenantEvents> tenants_;
    WaitTimes waits_;
};

}  // namespace gpupool::daemon
