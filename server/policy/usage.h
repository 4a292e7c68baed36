// How much each tenant has used, by day (UTC): what the daemon counts in memory between two flushes to the Store.
//
// A job's GPUs count once, however many processes it has. Byte seconds are device memory in use, as workers report it,
// times time. A session counts on the day on which it starts.
//
// Beside the rows for the Store, the meter adds up what each tenant has used since the meter was made, and what each
// running session has. These totals never become less. A session's GPU time is that of the GPUs which it sees, so the
// sessions of one job together may have more than their tenant.
//
// Ownership: values. Threads: one at a time. Errors: none. Units: milliseconds; bytes; times of a steady clock, and
// milliseconds since 1970 for the day. If the wall clock is set, only the days of the current interval are affected.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace gpupool::policy {

struct UsageAmounts {
    std::uint64_t sessions = 0;
    std::uint64_t gpu_ms = 0;        // GPUs times milliseconds
    std::uint64_t byte_seconds = 0;  // bytes of device memory times seconds
    std::uint64_t bytes_in = 0;      // copied to devices
    std::uint64_t bytes_out = 0;

    UsageAmounts& operator+=(const UsageAmounts& other);
    [[nodiscard]] bool any() const { return *this != UsageAmounts(); }
    bool operator==(const UsageAmounts&) const = default;
};

struct UsageRow {
    std::int64_t day = 0;  // days since 1970-01-01
    std::string tenant;
    UsageAmounts amounts;

    bool operator==(const UsageRow&) const = default;
};

// "2026-11-30".
std::string day_text(std::int64_t day);

struct Moment {
    std::int64_t steady_ms = 0;
    std::int64_t unix_ms = 0;
};

class UsageMeter {
  public:
    // Tenants with totals of their own. Those that come later share the totals of kOtherTenants.
    static constexpr std::size_t kMaxTotals = 1000;
    static constexpr const char* kOtherTenants = "(others)";  // no name of a tenant

    // `gpus`: that the session sees.
    void start_session(const std::string& session, const std::string& tenant, const Moment& now, std::size_t gpus = 0);
    // What it uses from now on.
    void set_memory(const std::string& session, std::uint64_t bytes, const Moment& now);
    // What it has copied since its start, as its worker reports.
    void set_copied(const std::string& session, std::uint64_t bytes_in, std::uint64_t bytes_out, const Moment& now);
    void end_session(const std::string& session, const Moment& now);
    // How many GPUs all jobs of a tenant have from now on (TenantUse::gpus).
    void set_gpus(const std::string& tenant, std::size_t gpus, const Moment& now);
    // A session that another daemon has counted up to now.
    void adopt_session(const std::string& session, const std::string& tenant, std::uint64_t bytes_in,
                       std::uint64_t bytes_out, const Moment& now, std::size_t gpus = 0);

    // The totals of all tenants that have had a session, up to now.
    const std::map<std::string, UsageAmounts>& totals(const Moment& now);
    // The total of a running session, up to now; nothing for any other.
    UsageAmounts of_session(const std::string& session, const Moment& now);

    // All that was counted since the last call, up to now.
    std::vector<UsageRow> take(const Moment& now);
    // Rows of take() that could not be stored.
    void give_back(const std::vector<UsageRow>& rows);

  private:
    // The GPUs and memory that a session or a tenant has, and the time until which they were counted.
    struct Holding {
        std::size_t gpus = 0;
        std::uint64_t memory_bytes = 0;
        std::uint64_t byte_ms_rest = 0;  // less than a byte second, not counted yet
        std::int64_t counted_to_ms = 0;  // steady

        UsageAmounts count(std::int64_t ms);
    };
    struct Tenant : Holding {
        std::size_t sessions = 0;
    };
    struct Session : Holding {
        std::string tenant;
        std::uint64_t bytes_in = 0, bytes_out = 0;  // as its worker reports them
        UsageAmounts total;
    };

    Tenant& count(const std::string& name, const Moment& now);
    static void count(Session& session, const Moment& now);
    void add(const std::string& tenant, std::int64_t unix_ms, const UsageAmounts& amounts);
    void forget_idle(const std::string& name);

    std::map<std::string, Tenant> tenants_;
    std::map<std::string, Session> sessions_;
    std::map<std::pair<std::int64_t, std::string>, UsageAmounts> rows_;
    std::map<std::string, UsageAmounts> totals_;
};

}  // namespace gpupool::policy
