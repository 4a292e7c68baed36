// What the server keeps over restarts: tenants and the hashes of their tokens, live changes of limits, and usage by
// tenant and day. One SQLite database in the server's state directory.
//
// Crash-safe: each call is one transaction, on the disk when it returns.
//
// Ownership: owns the database. Threads: one at a time; calls block on the disk, so the daemon makes them from a thread
// of its own. Errors: Result; a call that fails has changed nothing. Times: milliseconds since 1970.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/result.h"
#include "server/policy/database.h"
#include "server/policy/policy.h"
#include "server/policy/tokens.h"
#include "server/policy/usage.h"

namespace gpupool::policy {

// Tokens of one tenant or administrator that are valid at a time.
inline constexpr std::size_t kMaxTokensEach = 16;

struct StoredToken {
    std::int64_t id = 0;
    std::string fingerprint;  // the first digits of its hash, to tell tokens apart
    std::int64_t made_ms = 0;
    std::optional<std::int64_t> ends_ms;
};

struct StoredTenant {
    Identity identity;
    std::int64_t added_ms = 0;
    std::vector<StoredToken> tokens;  // those that are valid or may become invalid by time alone
};

// A token's text exists only here: it is shown once and forgotten.
struct IssuedToken {
    std::int64_t id = 0;
    std::string token;
};

struct UsageQuery {
    std::optional<std::string> tenant;
    std::int64_t first_day = 0;
    std::int64_t last_day = INT64_MAX;
    std::size_t most_rows = 10000;
};

class Store {
  public:
    // Opens or creates the database. Refuses one of a later version of gpupool.
    static Result<Store> open(const std::string& path);

    // A new tenant or administrator with a first token. Fails if there is one of the name.
    Result<IssuedToken> add(const Identity& who, std::int64_t now_ms);
    // A new token. Those that exist end `grace` from now, at once with 0.
    Result<IssuedToken> rotate(const std::string& name, milliseconds grace, std::int64_t now_ms);
    // Ends one token, or all of them. The tenant, its limits and its usage stay.
    Status revoke(const std::string& name, std::optional<std::int64_t> id, std::int64_t now_ms);
    Result<std::vector<StoredTenant>> list(std::int64_t now_ms);
    // For a TokenTable; `any`: there is a tenant or administrator, with or without a token.
    Result<std::vector<KnownToken>> tokens(std::int64_t now_ms, bool* any = nullptr);

    // Live changes of limits. `text`: as check_override() returned it; nullopt: removes the change.
    Status set_override(const Scope& scope, std::string_view key, const std::optional<std::string>& text,
                        std::string_view by, std::int64_t now_ms);
    Result<Overrides> overrides();
    // A session has ended: its changes are forgotten.
    Status forget_session(const std::string& session);

    // Adds to what is there, all rows or none.
    Status add_usage(const std::vector<UsageRow>& rows);
    // By day, then tenant.
    Result<std::vector<UsageRow>> usage(const UsageQuery& query);
    // Removes usage of days before `day`.
    Status prune_usage(std::int64_t day);

  private:
    explicit Store(Database database) : database_(std::move(database)) {}
    Result<IssuedToken> issue(const std::string& name, std::int64_t now_ms);
    Result<std::optional<Identity>> find(const std::string& name);
    Result<std::int64_t> count(std::string_view statement, std::initializer_list<Parameter> parameters);

    Database database_;
};

}  // namespace gpupool::policy
