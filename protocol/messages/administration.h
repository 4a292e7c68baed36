// What an administrator asks the daemon and what it answers, as values: written into and read from Control messages
// (protocol/schema/administration.capnp).
//
// Ownership: values. Threads: any. Errors: Result; messages beyond the limits below are refused. Names and the texts of
// limits are not checked here: the daemon does that, against its policy.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "common/result.h"

namespace gpupool::messages {

inline constexpr std::size_t kMaxChanges = 64;     // limits in one request
inline constexpr std::size_t kMaxTenants = 20000;  // in an answer
inline constexpr std::size_t kMaxTokensListed = 64;
inline constexpr std::size_t kMaxLimits = 256;
inline constexpr std::size_t kMaxUsageRows = 10000;
inline constexpr std::chrono::milliseconds kMaxGrace = std::chrono::hours(24 * 366);

struct LimitScope {
    enum class Kind : std::uint8_t { everyone, tenant, session };
    Kind kind = Kind::everyone;
    std::string name;  // the tenant's, or the session's id

    bool operator==(const LimitScope&) const = default;
};

struct LimitText {
    std::string key, value;
    std::string origin;  // in answers

    bool operator==(const LimitText&) const = default;
};

struct ListTenants {
    bool operator==(const ListTenants&) const = default;
};
struct AddTenant {
    std::string name;
    bool administrator = false;
    bool operator==(const AddTenant&) const = default;
};
struct RotateToken {
    std::string name;
    std::chrono::milliseconds grace{0};  // at most kMaxGrace
    bool operator==(const RotateToken&) const = default;
};
struct RevokeTokens {
    std::string name;
    std::uint64_t id = 0;  // 0: all
    bool operator==(const RevokeTokens&) const = default;
};
struct ShowLimits {
    LimitScope scope;
    bool operator==(const ShowLimits&) const = default;
};
struct ChangeLimits {
    LimitScope scope;
    std::vector<LimitText> set;
    std::vector<std::string> unset;
    bool operator==(const ChangeLimits&) const = default;
};
struct EndSession {
    std::string session, reason;
    bool operator==(const EndSession&) const = default;
};
struct ShowUsage {
    std::string tenant;  // empty: all
    std::int64_t first_day = 0, last_day = INT64_MAX;
    bool operator==(const ShowUsage&) const = default;
};
using AdministrationRequest =
    std::variant<ListTenants, AddTenant, RotateToken, RevokeTokens, ShowLimits, ChangeLimits, EndSession, ShowUsage>;

struct AdministrationError {
    std::string message;
    bool operator==(const AdministrationError&) const = default;
};
struct Done {
    std::string message;
    bool operator==(const Done&) const = default;
};
struct TokenFacts {
    std::uint64_t id = 0;
    std::string fingerprint;
    std::int64_t made_ms = 0;
    std::int64_t ends_ms = 0;  // 0: valid until it is revoked
    bool operator==(const TokenFacts&) const = default;
};
struct TenantFacts {
    std::string name;
    bool administrator = false;
    std::int64_t added_ms = 0;  // 0: it has no tokens of the server's
    std::vector<TokenFacts> tokens;
    std::uint32_t sessions = 0;
    std::uint32_t gpus = 0;
    std::uint64_t promised_bytes = 0;
    bool configured = false;
    bool operator==(const TenantFacts&) const = default;
};
struct TenantList {
    std::vector<TenantFacts> tenants;
    bool operator==(const TenantList&) const = default;
};
struct NewToken {
    std::string name;
    std::uint64_t id = 0;
    std::string token;
    bool operator==(const NewToken&) const = default;
};
struct LimitList {
    std::vector<LimitText> limits;
    bool operator==(const LimitList&) const = default;
};
struct UsageFacts {
    std::int64_t day = 0;
    std::string tenant;
    std::uint64_t sessions = 0, gpu_ms = 0, byte_seconds = 0, bytes_in = 0, bytes_out = 0;
    bool operator==(const UsageFacts&) const = default;
};
struct UsageList {
    std::vector<UsageFacts> rows;
    bool operator==(const UsageList&) const = default;
};
using AdministrationAnswer = std::variant<AdministrationError, Done, TenantList, NewToken, LimitList, UsageList>;

// The payloads of Control frames.
std::vector<std::byte> request_payload(const AdministrationRequest& request);
std::vector<std::byte> answer_payload(const AdministrationAnswer& answer);
Result<AdministrationRequest> read_request(std::span<const std::byte> payload);
Result<AdministrationAnswer> read_answer(std::span<const std::byte> payload);

}  // namespace gpupool::messages
