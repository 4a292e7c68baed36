#include "server/policy/store.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace gpupool::policy {
namespace {

// The database's `user_version`.
constexpr std::int64_t kVersion = 1;
constexpr std::size_t kFingerprintDigits = 8;
constexpr std::int64_t kMaxTenantsStored = 10000;
constexpr std::int64_t kMaxOverrides = 100000;

constexpr const char* kTables = R"(
CREATE TABLE IF NOT EXISTS tenants (
  name TEXT PRIMARY KEY,
  administrator INTEGER NOT NULL,
  added_ms INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS tokens (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  tenant TEXT NOT NULL REFERENCES tenants(name),
  hash BLOB NOT NULL UNIQUE,
  made_ms INTEGER NOT NULL,
  ends_ms INTEGER
);
CREATE TABLE IF NOT EXISTS overrides (
  kind INTEGER NOT NULL,
  name TEXT NOT NULL,
  key TEXT NOT NULL,
  value TEXT NOT NULL,
  changed_by TEXT NOT NULL,
  changed_ms INTEGER NOT NULL,
  PRIMARY KEY (kind, name, key)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS usage (
  day INTEGER NOT NULL,
  tenant TEXT NOT NULL,
  sessions INTEGER NOT NULL,
  gpu_ms INTEGER NOT NULL,
  byte_seconds INTEGER NOT NULL,
  bytes_in INTEGER NOT NULL,
  bytes_out INTEGER NOT NULL,
  PRIMARY KEY (day, tenant)
) WITHOUT ROWID;
)";

std::int64_t as_signed(std::uint64_t value) {
    return static_cast<std::int64_t>(std::min<std::uint64_t>(value, INT64_MAX));
}

Error no_tenant(const std::string& name) {
    return Error{
        ErrorCode::invalid_input,
        fmt::format("there is no tenant or administrator {} with tokens of the server's: gpupool tenant list", name)};
}

}  // namespace

Result<Store> Store::open(const std::string& path) {
    auto database = Database::open(path);
    if (!database) {
        return database.error();
    }
    Store store(std::move(*database));
    const auto version = store.count("PRAGMA user_version", {});
    if (!version) {
        return version.error();
    }
    if (*version > kVersion) {
        return Error{ErrorCode::unsupported,
                     fmt::format("{} was written by a later version of gpupool: install that one, or name another "
                                 "state directory",
                                 path)};
    }
    GPUPOOL_TRY(store.database_.transaction([&]() -> Status {
        GPUPOOL_TRY(store.database_.run(kTables));
        return store.database_.run(fmt::format("PRAGMA user_version = {}", kVersion).c_str());
    }));
    return store;
}

Result<std::int64_t> Store::count(std::string_view statement, std::initializer_list<Parameter> parameters) {
    std::int64_t value = 0;
    GPUPOOL_TRY(database_.run(statement, parameters, [&](const Row& row) { value = row.number(0); }));
    return value;
}

Result<std::optional<Identity>> Store::find(const std::string& name) {
    std::optional<Identity> found;
    GPUPOOL_TRY(database_.run("SELECT administrator FROM tenants WHERE name = ?", {std::string_view(name)},
                              [&](const Row& row) {
                                  found = Identity{row.number(0) != 0 ? Role::administrator : Role::tenant, name};
                              }));
    return found;
}

Result<IssuedToken> Store::issue(const std::string& name, std::int64_t now_ms) {
    const auto valid = count("SELECT COUNT(*) FROM tokens WHERE tenant = ? AND (ends_ms IS NULL OR ends_ms > ?)",
                             {std::string_view(name), now_ms});
    if (!valid) {
        return valid.error();
    }
    if (*valid >= static_cast<std::int64_t>(kMaxTokensEach)) {
        return Error{ErrorCode::limit_exceeded,
                     fmt::format("{} has {} valid tokens, the most allowed: revoke one", name, *valid)};
    }
    auto token = make_token();
    if (!token) {
        return token.error();
    }
    const Digest hash = hash_token(*token);
    GPUPOOL_TRY(database_.run("INSERT INTO tokens (tenant, hash, made_ms) VALUES (?, ?, ?)",
                              {std::string_view(name), std::span<const std::byte>(hash), now_ms}));
    return IssuedToken{database_.last_row_id(), std::move(*token)};
}

Result<IssuedToken> Store::add(const Identity& who, std::int64_t now_ms) {
    GPUPOOL_TRY(check_name(who.name));
    if (who.role == Role::anonymous || who.name == kAnonymous) {
        return Error{ErrorCode::invalid_input, "anonymous is no tenant: it stands for clients without a token"};
    }
    Result<IssuedToken> issued = IssuedToken{};
    GPUPOOL_TRY(database_.transaction([&]() -> Status {
        const auto known = find(who.name);
        if (!known || known->has_value()) {
            return known ? Error{ErrorCode::invalid_input,
                                 fmt::format("{} exists: gpupool tenant rotate gives it a new token", who.name)}
                         : known.error();
        }
        const auto tenants = count("SELECT COUNT(*) FROM tenants", {});
        if (!tenants || *tenants >= kMaxTenantsStored) {
            return tenants ? Error{ErrorCode::limit_exceeded,
                                   fmt::format("there are {} tenants, the most allowed", *tenants)}
                           : tenants.error();
        }
        const std::int64_t administrator = who.role == Role::administrator ? 1 : 0;
        GPUPOOL_TRY(
            database_.run("INSERT INTO tenants VALUES (?, ?, ?)", {std::string_view(who.name), administrator, now_ms}));
        issued = issue(who.name, now_ms);
        return issued ? Status() : Status(issued.error());
    }));
    return issued;
}

Result<IssuedToken> Store::rotate(const std::string& name, milliseconds grace, std::int64_t now_ms) {
    Result<IssuedToken> issued = IssuedToken{};
    GPUPOOL_TRY(database_.transaction([&]() -> Status {
        const auto known = find(name);
        if (!known || !known->has_value()) {
            return known ? no_tenant(name) : known.error();
        }
        const std::int64_t end_ms = now_ms + std::max<std::int64_t>(grace.count(), 0);
        GPUPOOL_TRY(
            database_.run("UPDATE tokens SET ends_ms = ?1 WHERE tenant = ?2 AND (ends_ms IS NULL OR ends_ms > ?1)",
                          {end_ms, std::string_view(name)}));
        GPUPOOL_TRY(
            database_.run("DELETE FROM tokens WHERE tenant = ? AND ends_ms <= ?", {std::string_view(name), now_ms}));
        issued = issue(name, now_ms);
        return issued ? Status() : Status(issued.error());
    }));
    return issued;
}

Status Store::revoke(const std::string& name, std::optional<std::int64_t> id, std::int64_t now_ms) {
    return database_.transaction([&]() -> Status {
        const auto known = find(name);
        if (!known || !known->has_value()) {
            return known ? no_tenant(name) : known.error();
        }
        GPUPOOL_TRY(
            database_.run("DELETE FROM tokens WHERE tenant = ? AND ends_ms <= ?", {std::string_view(name), now_ms}));
        if (!id) {
            return database_.run("DELETE FROM tokens WHERE tenant = ?", {std::string_view(name)});
        }
        GPUPOOL_TRY(database_.run("DELETE FROM tokens WHERE tenant = ? AND id = ?", {std::string_view(name), *id}));
        return database_.changes() == 1
                   ? Status()
                   : Status(Error{ErrorCode::invalid_input,
                                  fmt::format("{} has no token {}: gpupool tenant list", name, *id)});
    });
}

Result<std::vector<StoredTenant>> Store::list(std::int64_t now_ms) {
    std::vector<StoredTenant> tenants;
    GPUPOOL_TRY(
        database_.run("SELECT name, administrator, added_ms FROM tenants ORDER BY name", {}, [&](const Row& row) {
            const Role role = row.number(1) != 0 ? Role::administrator : Role::tenant;
            tenants.push_back({{role, row.text(0)}, row.number(2), {}});
        }));
    auto tenant = tenants.begin();
    GPUPOOL_TRY(database_.run(
        "SELECT tenant, id, hash, made_ms, ends_ms FROM tokens WHERE ends_ms IS NULL OR ends_ms > ? "
        "ORDER BY tenant, id",
        {now_ms}, [&](const Row& row) {
            const std::string name = row.text(0), hash = row.text(2);
            while (tenant != tenants.end() && tenant->identity.name != name) {
                ++tenant;
            }
            Digest digest{};
            if (tenant != tenants.end() && hash.size() == digest.size()) {
                std::memcpy(digest.data(), hash.data(), hash.size());
                tenant->tokens.push_back({row.number(1), to_string(digest).substr(0, kFingerprintDigits), row.number(3),
                                          row.is_null(4) ? std::nullopt : std::optional(row.number(4))});
            }
        }));
    return tenants;
}

Result<std::vector<KnownToken>> Store::tokens(std::int64_t now_ms, bool* any) {
    std::vector<KnownToken> tokens;
    GPUPOOL_TRY(
        database_.run("SELECT tokens.hash, tenants.administrator, tenants.name, tokens.ends_ms FROM tokens "
                      "JOIN tenants ON tenants.name = tokens.tenant WHERE tokens.ends_ms IS NULL OR tokens.ends_ms > ?",
                      {now_ms}, [&](const Row& row) {
                          KnownToken token;
                          const std::string hash = row.text(0);
                          if (hash.size() == token.hash.size()) {
                              std::memcpy(token.hash.data(), hash.data(), hash.size());
                              token.whose = {row.number(1) != 0 ? Role::administrator : Role::tenant, row.text(2)};
                              token.ends_ms = row.is_null(3) ? std::nullopt : std::optional(row.number(3));
                              tokens.push_back(std::move(token));
                          }
                      }));
    if (any != nullptr) {
        const auto tenants = count("SELECT COUNT(*) FROM tenants", {});
        if (!tenants) {
            return tenants.error();
        }
        *any = *tenants > 0;
    }
    return tokens;
}

Status Store::set_override(const Scope& scope, std::string_view key, const std::optional<std::string>& text,
                           std::string_view by, std::int64_t now_ms) {
    const auto kind = static_cast<std::int64_t>(scope.kind);
    if (!text) {
        return database_.run("DELETE FROM overrides WHERE kind = ? AND name = ? AND key = ?",
                             {kind, std::string_view(scope.name), key});
    }
    return database_.transaction([&]() -> Status {
        const auto kept = count("SELECT COUNT(*) FROM overrides", {});
        if (!kept || *kept >= kMaxOverrides) {
            return kept ? Error{ErrorCode::limit_exceeded,
                                fmt::format("{} live changes of limits are kept, the most allowed", *kept)}
                        : kept.error();
        }
        return database_.run("INSERT OR REPLACE INTO overrides VALUES (?, ?, ?, ?, ?, ?)",
                             {kind, std::string_view(scope.name), key, std::string_view(*text), by, now_ms});
    });
}

Result<Overrides> Store::overrides() {
    Overrides all;
    GPUPOOL_TRY(database_.run("SELECT kind, name, key, value FROM overrides", {}, [&](const Row& row) {
        const std::int64_t kind = row.number(0);
        if (kind >= 0 && kind <= static_cast<std::int64_t>(Scope::Kind::session)) {
            all[{static_cast<Scope::Kind>(kind), row.text(1)}][row.text(2)] = row.text(3);
        }
    }));
    return all;
}

Status Store::forget_session(const std::string& session) {
    return database_.run("DELETE FROM overrides WHERE kind = ? AND name = ?",
                         {static_cast<std::int64_t>(Scope::Kind::session), std::string_view(session)});
}

Status Store::add_usage(const std::vector<UsageRow>& rows) {
    return database_.transaction([&]() -> Status {
        for (const UsageRow& row : rows) {
            const UsageAmounts& more = row.amounts;
            GPUPOOL_TRY(database_.run(
                "INSERT INTO usage VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT (day, tenant) DO UPDATE SET "
                "sessions = sessions + ?3, gpu_ms = gpu_ms + ?4, byte_seconds = byte_seconds + ?5, "
                "bytes_in = bytes_in + ?6, bytes_out = bytes_out + ?7",
                {row.day, std::string_view(row.tenant), as_signed(more.sessions), as_signed(more.gpu_ms),
                 as_signed(more.byte_seconds), as_signed(more.bytes_in), as_signed(more.bytes_out)}));
        }
        return {};
    });
}

Result<std::vector<UsageRow>> Store::usage(const UsageQuery& query) {
    std::vector<UsageRow> rows;
    const Parameter tenant = query.tenant ? Parameter(std::string_view(*query.tenant)) : Parameter(nullptr);
    GPUPOOL_TRY(database_.run(
        "SELECT day, tenant, sessions, gpu_ms, byte_seconds, bytes_in, bytes_out FROM usage "
        "WHERE (?1 IS NULL OR tenant = ?1) AND day BETWEEN ?2 AND ?3 ORDER BY day, tenant LIMIT ?4",
        {tenant, query.first_day, query.last_day, as_signed(query.most_rows)}, [&](const Row& row) {
            const auto amount = [&row](int column) { return static_cast<std::uint64_t>(row.number(column)); };
            rows.push_back({row.number(0), row.text(1), {amount(2), amount(3), amount(4), amount(5), amount(6)}});
        }));
    return rows;
}

Status Store::prune_usage(std::int64_t day) {
    return database_.run("DELETE FROM usage WHERE day < ?", {day});
}

}  // namespace gpupool::policy
