// What the operator decided: tokens, limits of tenants and sessions, and how sessions are placed.
//
// A Policy comes from the server's configuration file (docs/configuration.md, "Tenants"). Live changes by an
// administrator (Overrides) are kept apart from it, win over it where they concern the same place, and so survive that
// the file is read again. The most special place that sets a limit counts:
//
//   session (live) > tenant (live) > [tenant.NAME] > all tenants (live) > [tenants] > limits.session_memory, built in
//
// Ownership: an immutable value. Reading the file again makes a new value and leaves the old one as it is.
// Threads: any. Errors: Result; the message names file, line and key.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/policy/limits.h"
#include "server/policy/tokens.h"

namespace gpupool::policy {

// How a session's GPUs are chosen among those with room.
enum class Placement : std::uint8_t {
    pack,    // the fullest first, so that GPUs stay empty for large and exclusive sessions
    spread,  // the emptiest first, so that sessions disturb each other least
};

struct Rules {
    Placement placement = Placement::spread;
    double overcommit = 1.0;                          // how often a device's memory may be promised
    std::size_t sessions = 64;                        // at a time, of all tenants
    std::size_t queue_length = 256;                   // sessions that wait
    milliseconds queue_time = std::chrono::hours(1);  // the longest time that one waits
};

// Where limits can be set live.
struct Scope {
    enum class Kind : std::uint8_t { everyone, tenant, session };
    Kind kind = Kind::everyone;
    std::string name;  // the tenant's, or the session's id

    auto operator<=>(const Scope&) const = default;
};

// Limits that were set live, as texts: format_limit().
using Overrides = std::map<Scope, std::map<std::string, std::string, std::less<>>>;

// A limit, where it was set, for people.
struct ShownLimit {
    Limit limit;
    LimitValue value;
    std::string origin;  // "gpupoold.toml:7", "set live for the tenant", "built in"
};

class Policy {
  public:
    // The file's tables that belong to the policy alone.
    static bool owns(std::string_view table);

    // Reads the policy's part of a configuration file; the rest of it is not checked here. An empty path: no file.
    // `token_file`: the option --token-file, which replaces `auth.token_file`.
    static Result<Policy> load(const std::string& path, const std::string& token_file = {});
    // The same from the file's text; `path` is for messages.
    static Result<Policy> parse(std::string_view text, const std::string& path, const std::string& token_file = {});

    // This policy with other live changes. Changes that cannot be used any more (by an older version, say) are left
    // out and named in `unusable`.
    [[nodiscard]] Policy with(const Overrides& overrides, std::vector<std::string>* unusable = nullptr) const;

    // Fails if a limit names a device that a server with so many devices does not have.
    [[nodiscard]] Status check_devices(std::size_t count) const;

    [[nodiscard]] const Rules& rules() const { return rules_; }
    // What a tenant's sessions may have, or one session. An unknown tenant has what all have.
    [[nodiscard]] Effective limits(const std::string& tenant, const std::string& session = {}) const;
    // Is a limit set live for this session?
    [[nodiscard]] bool changes_session(const std::string& session) const;
    // All limits that hold there, and where each was set.
    [[nodiscard]] std::vector<ShownLimit> show(const std::string& tenant, const std::string& session = {}) const;
    // The tenants that the file names.
    [[nodiscard]] std::vector<std::string> tenants() const;
    // The tokens of the file.
    [[nodiscard]] const std::vector<KnownToken>& tokens() const { return tokens_; }

  private:
    friend class PolicyReader;

    struct Place {
        Limits limits;
        std::map<Limit, std::string> origins;
        void apply(const Place& other);
    };

    [[nodiscard]] Place combined(const std::string& tenant, const std::string& session) const;
    [[nodiscard]] Place live(const Scope& scope) const;

    Rules rules_;
    Place everyone_;
    std::map<std::string, Place> tenants_;
    std::vector<KnownToken> tokens_;
    std::map<Scope, Place> live_;
};

// Checks a live change: that the key exists and the text is a value of it. Returns the text as it is kept.
Result<std::string> check_override(std::string_view key, std::string_view text);

}  // namespace gpupool::policy
