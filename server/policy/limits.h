// The limits of tenants and their sessions: their names, their texts, and how those of several places combine.
//
// A limit is set for all tenants, for one tenant, or for one session; the last of these that sets it counts. "none" as
// its text lifts it. A client may ask for less than a limit, never for more.
//
// Ownership: values. Threads: any. Errors: Result; the message says what is accepted. Units: bytes, milliseconds.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "common/quotas.h"
#include "common/result.h"
#include "common/session_class.h"

namespace gpupool::policy {

using std::chrono::milliseconds;

// As the value of a limit: there is none.
inline constexpr std::uint64_t kNoLimit = UINT64_MAX;

enum class Limit : std::uint8_t {
    // of a job: of the processes of one program, or of one session without a job
    memory,          // device memory, of each device
    default_memory,  // what a session gets that asks for no amount
    gpus,
    default_gpus,
    session_class,
    priority,
    // of all jobs of a tenant together
    sessions,
    total_gpus,    // counted once for each job that has it
    total_memory,  // device memory that is promised to its jobs, of all devices
    // of a session
    copy_bandwidth,  // bytes per second, in each direction
    pinned_memory,   // of the host
    handles,         // driver objects
    idle_time,
    life_time,
};
inline constexpr std::size_t kLimitCount = 14;

enum class LimitKind : std::uint8_t { quotas, bytes, bandwidth, count, session_class, priority, duration };

struct LimitFacts {
    Limit limit;
    std::string_view key;
    LimitKind kind;
    std::uint64_t least;  // of a number
    bool live;            // a change also holds for sessions that run already
};

std::span<const LimitFacts, kLimitCount> all_limits();
const LimitFacts& facts_of(Limit limit);
const LimitFacts* find_limit(std::string_view key);

struct LimitValue {
    std::uint64_t number = kNoLimit;  // bytes, bytes per second, a count, milliseconds, a SessionClass
    Quotas quotas;                    // for LimitKind::quotas; none: no limit

    bool operator==(const LimitValue& other) const {
        return number == other.number && quotas.each_bytes == other.quotas.each_bytes &&
               quotas.of_device == other.quotas.of_device;
    }
};

Result<LimitValue> parse_limit(Limit limit, std::string_view text);
// A text that parse_limit() reads as the same value.
std::string format_limit(Limit limit, const LimitValue& value);

// "8GiB", "1536MiB", "4097": exact, unlike format_bytes().
std::string exact_bytes(std::uint64_t bytes);
// "8GiB,1=4GiB"; "none" for none.
std::string exact_quotas(const Quotas& quotas);

// Those limits that one place sets.
class Limits {
  public:
    [[nodiscard]] const std::optional<LimitValue>& get(Limit limit) const {
        return values_[static_cast<std::size_t>(limit)];
    }
    void set(Limit limit, LimitValue value) { values_[static_cast<std::size_t>(limit)] = std::move(value); }
    void unset(Limit limit) { values_[static_cast<std::size_t>(limit)].reset(); }
    [[nodiscard]] bool any() const;
    // Those of `other` replace these.
    void apply(const Limits& other);

  private:
    std::array<std::optional<LimitValue>, kLimitCount> values_;
};

// What a tenant's jobs and sessions may have, with no question left open.
struct Effective {
    Quotas memory, default_memory;  // none: no limit; no default of its own
    std::uint64_t gpus = kNoLimit;
    std::uint64_t default_gpus = kNoLimit;
    SessionClass session_class = SessionClass::shared;
    std::uint64_t priority = kMaxPriority / 2;
    std::uint64_t sessions = kNoLimit;
    std::uint64_t total_gpus = kNoLimit;
    std::uint64_t total_memory_bytes = kNoLimit;
    std::uint64_t copy_bandwidth = kNoLimit;  // bytes per second, in each direction
    std::uint64_t pinned_memory_bytes = kNoLimit;
    std::uint64_t handles = kNoLimit;
    std::uint64_t idle_time_ms = kNoLimit;
    std::uint64_t life_time_ms = kNoLimit;
};
Effective effective(const Limits& limits);

// Why a session has to end by its limits, for its user; nullopt: it need not yet. Times in milliseconds on one clock.
std::optional<std::string> end_reason(const Effective& limits, std::int64_t started_ms, std::int64_t last_active_ms,
                                      std::int64_t now_ms);

}  // namespace gpupool::policy
