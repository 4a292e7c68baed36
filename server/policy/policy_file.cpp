// Reads a Policy from a configuration file.
#include <fmt/format.h>
#include <sys/stat.h>
#include <toml++/toml.h>

#include <algorithm>
#include <array>
#include <string>

#include "common/files.h"
#include "common/log.h"
#include "common/units.h"
#include "server/policy/policy.h"

namespace gpupool::policy {
namespace {

constexpr std::size_t kMaxFileBytes = 1u << 20;
constexpr std::size_t kMaxTokenFileBytes = 64u << 20;
constexpr std::size_t kMaxTenants = 10000;
constexpr std::int64_t kMaxSessions = 100000;

Error wrong(std::string message) {
    return Error{ErrorCode::invalid_input, std::move(message)};
}

// A value as text, which the limits' parsers read, as they read those of the command line.
Result<std::string> text_of(const toml::node& node) {
    if (const auto* text = node.as_string()) {
        return text->get();
    }
    if (const auto* number = node.as_integer()) {
        return fmt::to_string(number->get());
    }
    return wrong("must be a string or a whole number");
}

}  // namespace

class PolicyReader {
  public:
    PolicyReader(std::string path, std::string token_file)
        : path_(std::move(path)), token_file_(std::move(token_file)) {}

    Result<Policy> read(const toml::table& file) {
        if (const auto* limits = file["limits"].as_table()) {
            GPUPOOL_TRY(read_old_limits(*limits));
        }
        GPUPOOL_TRY(table(file, "placement", [this](const toml::table& entries) { return read_rules(entries); }));
        GPUPOOL_TRY(table(file, "tenants", [this](const toml::table& entries) {
            return read_place(entries, policy_.everyone_, "tenants.", nullptr);
        }));
        GPUPOOL_TRY(table(file, "tenant", [this](const toml::table& entries) { return read_tenants(entries); }));
        if (const auto* auth = file["auth"].as_table()) {
            GPUPOOL_TRY(read_auth(*auth));
        }
        if (!token_file_.empty()) {
            if (const Status read = read_tokens(token_file_); !read) {
                return read.error().within("--token-file");
            }
        }
        return std::move(policy_);
    }

  private:
    [[nodiscard]] std::string where(const toml::source_region& source) const {
        return fmt::format("{}:{}", path_, source.begin.line);
    }

    Error at(const toml::node& node, std::string_view name, const Error& error) const {
        return error.within(fmt::format("{}: {}", where(node.source()), name));
    }

    template <class Read>
    Status table(const toml::table& file, std::string_view key, Read read) const {
        const toml::node* const node = file.get(key);
        if (node == nullptr) {
            return {};
        }
        const auto* entries = node->as_table();
        return entries == nullptr ? Status(at(*node, key, wrong("must be a table"))) : read(*entries);
    }

    Result<std::int64_t> whole_number(const toml::node& node, std::string_view name, std::int64_t least,
                                      std::int64_t most) const {
        const auto value = node.value_exact<std::int64_t>();
        if (!value || *value < least || *value > most) {
            return at(node, name, wrong(fmt::format("must be a whole number from {} to {}", least, most)));
        }
        return *value;
    }

    Status set_limit(const toml::node& node, Limit limit, const std::string& name, Policy::Place& place) const {
        const auto text = text_of(node);
        if (!text) {
            return at(node, name, text.error());
        }
        auto value = parse_limit(limit, *text);
        if (!value) {
            return at(node, name, value.error());
        }
        place.limits.set(limit, std::move(*value));
        place.origins[limit] = where(node.source());
        return {};
    }

    // Settings that are older than tenants: they hold where [tenants] says nothing.
    Status read_old_limits(const toml::table& limits) {
        if (const toml::node* node = limits.get("sessions")) {
            const auto sessions = whole_number(*node, "limits.sessions", 1, kMaxSessions);
            if (!sessions) {
                return sessions.error();
            }
            policy_.rules_.sessions = static_cast<std::size_t>(*sessions);
        }
        if (const toml::node* node = limits.get("session_memory")) {
            GPUPOOL_TRY(set_limit(*node, Limit::memory, "limits.session_memory", policy_.everyone_));
        }
        if (const toml::node* node = limits.get("shared_memory")) {
            GPUPOOL_TRY(set_limit(*node, Limit::pinned_memory, "limits.shared_memory", policy_.everyone_));
        }
        return {};
    }

    Status read_rules(const toml::table& entries) {
        Rules& rules = policy_.rules_;
        for (const auto& [key, node] : entries) {
            const std::string name = "placement." + std::string(key.str());
            if (key.str() == "policy") {
                const auto text = node.value_exact<std::string>();
                if (!text || (*text != "pack" && *text != "spread")) {
                    return at(node, name, wrong("must be \"pack\" or \"spread\""));
                }
                rules.placement = *text == "pack" ? Placement::pack : Placement::spread;
            } else if (key.str() == "overcommit") {
                constexpr double kMost = 100;
                const auto factor = node.is_number() ? node.value<double>() : std::nullopt;
                if (!factor || !(*factor >= 1) || *factor > kMost) {
                    return at(node, name, wrong(fmt::format("must be a number from 1 to {}", kMost)));
                }
                rules.overcommit = *factor;
            } else if (key.str() == "queue_length") {
                constexpr std::int64_t kMost = 10000;
                const auto length = whole_number(node, name, 0, kMost);
                if (!length) {
                    return length.error();
                }
                rules.queue_length = static_cast<std::size_t>(*length);
            } else if (key.str() == "queue_time") {
                const auto text = text_of(node);
                const auto time = text ? parse_duration(*text) : Result<milliseconds>(text.error());
                if (!time) {
                    return at(node, name, time.error());
                }
                if (*time > std::chrono::hours(24) || time->count() < 0) {
                    return at(node, name, wrong("must be at most 24h"));
                }
                rules.queue_time = *time;
            } else {
                return unknown(key, name);
            }
        }
        return {};
    }

    Error unknown(const toml::key& key, const std::string& name) const {
        return wrong(fmt::format("{}: there is no setting {}", where(key.source()), name));
    }

    // `tenant`: whose tokens may be in the table as well; null: the table has none.
    Status read_place(const toml::table& entries, Policy::Place& place, const std::string& prefix,
                      const std::string* tenant) {
        for (const auto& [key, node] : entries) {
            const std::string name = prefix + std::string(key.str());
            if (tenant != nullptr && key.str() == "token_hashes") {
                GPUPOOL_TRY(read_hashes(node, name, {Role::tenant, *tenant}));
                continue;
            }
            const LimitFacts* const facts = find_limit(key.str());
            if (facts == nullptr) {
                return unknown(key, name);
            }
            GPUPOOL_TRY(set_limit(node, facts->limit, name, place));
        }
        return check_defaults(entries, place, prefix);
    }

    // A default above its limit in the same table is a mistake.
    Status check_defaults(const toml::table& entries, const Policy::Place& place, const std::string& prefix) const {
        const auto& gpus = place.limits.get(Limit::gpus);
        const auto& default_gpus = place.limits.get(Limit::default_gpus);
        if (entries.contains("gpus") && entries.contains("default_gpus") && default_gpus->number > gpus->number) {
            return at(*entries.get("default_gpus"), prefix + "default_gpus",
                      wrong(fmt::format("must be at most gpus, {}", gpus->number)));
        }
        const auto& memory = place.limits.get(Limit::memory);
        const auto& default_memory = place.limits.get(Limit::default_memory);
        if (!entries.contains("memory") || !entries.contains("default_memory")) {
            return {};
        }
        for (std::size_t device = 0; device < Quotas::kMaxDevices; ++device) {
            const std::uint64_t most = memory->quotas.bytes(device);
            if (most != 0 && default_memory->quotas.bytes(device) > most) {
                return at(*entries.get("default_memory"), prefix + "default_memory",
                          wrong(fmt::format("must be at most memory, {}", exact_bytes(most))));
            }
        }
        return {};
    }

    Status read_tenants(const toml::table& entries) {
        for (const auto& [key, node] : entries) {
            const std::string name(key.str());
            if (const Status good = check_name(name); !good) {
                return good.error().within(fmt::format("{}: tenant.{}", where(key.source()), name));
            }
            const auto* table = node.as_table();
            if (table == nullptr) {
                return at(node, "tenant." + name, wrong("must be a table: [tenant." + name + "]"));
            }
            if (policy_.tenants_.size() >= kMaxTenants) {
                return at(node, "tenant." + name, wrong(fmt::format("at most {} tenants are allowed", kMaxTenants)));
            }
            GPUPOOL_TRY(read_place(*table, policy_.tenants_[name], "tenant." + name + ".", &name));
        }
        return {};
    }

    Status add_token(const Digest& hash, Identity whose) {
        if (policy_.tokens_.size() >= kMaxTokens) {
            return wrong(fmt::format("at most {} tokens are allowed", kMaxTokens));
        }
        if (const auto [known, is_new] = owners_.emplace(to_string(hash), whose); !is_new && known->second != whose) {
            return wrong(fmt::format("the same token belongs to {} already", known->second.name));
        }
        policy_.tokens_.push_back({hash, std::move(whose), std::nullopt});
        return {};
    }

    Status read_hashes(const toml::node& node, const std::string& name, const Identity& whose) {
        const auto* list = node.as_array();
        if (list == nullptr) {
            return at(node, name, wrong("must be a list of hashes"));
        }
        for (const auto& entry : *list) {
            const auto text = entry.value_exact<std::string>();
            const auto hash = parse_token_hash(text.value_or(""));
            if (!hash) {
                return at(entry, name, hash.error());
            }
            if (const Status added = add_token(*hash, whose); !added) {
                return at(entry, name, added.error());
            }
        }
        return {};
    }

    Status add_plain(const std::string& token) {
        if (token.size() < kMinTokenBytes || token.size() > kMaxTokenBytes) {
            return wrong(fmt::format("a token must have {} to {} characters", kMinTokenBytes, kMaxTokenBytes));
        }
        return add_token(hash_token(token), {Role::tenant, tenant_of_plain_token(token)});
    }

    Status read_auth(const toml::table& auth) {
        constexpr std::array<std::string_view, 3> kKeys = {"administrator_hashes", "tokens", "token_file"};
        for (const auto& [key, node] : auth) {
            if (std::find(kKeys.begin(), kKeys.end(), key.str()) == kKeys.end()) {
                return wrong(
                    fmt::format("{}:{}: there is no setting auth.{}", path_, key.source().begin.line, key.str()));
            }
        }
        if (const toml::node* node = auth.get("administrator_hashes")) {
            GPUPOOL_TRY(read_hashes(*node, "auth.administrator_hashes", {Role::administrator, "administrator"}));
        }
        if (const toml::node* node = auth.get("tokens")) {
            const auto* list = node->as_array();
            if (list == nullptr) {
                return at(*node, "auth.tokens", wrong("must be a list of strings"));
            }
            for (const auto& entry : *list) {
                const auto token = entry.value_exact<std::string>();
                if (!token) {
                    return at(entry, "auth.tokens", wrong("must be a list of strings"));
                }
                if (const Status added = add_plain(*token); !added) {
                    return at(entry, "auth.tokens", added.error());
                }
            }
        }
        if (const toml::node* node = auth.get("token_file")) {
            const auto path = node->value_exact<std::string>();
            if (!path) {
                return at(*node, "auth.token_file", wrong("must be a string"));
            }
            if (const Status read = token_file_.empty() ? read_tokens(*path) : Status(); !read) {
                return at(*node, "auth.token_file", read.error());
            }
        }
        return {};
    }

    Status read_tokens(const std::string& path) {
        const auto text = read_file(path, kMaxTokenFileBytes);
        if (!text || !text->has_value()) {
            return text ? wrong("cannot read the token file " + path + ": there is no such file") : text.error();
        }
        struct stat facts {};
        if (::stat(path.c_str(), &facts) == 0 && S_ISREG(facts.st_mode) && (facts.st_mode & 0044) != 0) {
            log::warn("the token file {} can be read by others: chmod 600 it", path);
        }
        std::string_view rest = **text;
        bool any = false;
        for (std::size_t number = 1; !rest.empty(); ++number) {
            std::string_view line = rest.substr(0, rest.find('\n'));
            rest.remove_prefix(std::min(line.size() + 1, rest.size()));
            while (!line.empty() && (line.back() == ' ' || line.back() == '\t' || line.back() == '\r')) {
                line.remove_suffix(1);
            }
            if (line.empty() || line.front() == '#') {
                continue;
            }
            if (const Status added = add_plain(std::string(line)); !added) {
                return added.error().within(fmt::format("{}:{}", path, number));
            }
            any = true;
        }
        if (!any) {
            return wrong(
                fmt::format("{} contains no token: write one per line, or remove token_file to let anyone "
                            "connect",
                            path));
        }
        return {};
    }

    const std::string path_;
    const std::string token_file_;
    Policy policy_;
    std::map<std::string, Identity> owners_;  // of tokens, by hash
};

Result<Policy> Policy::parse(std::string_view text, const std::string& path, const std::string& token_file) {
    const toml::parse_result parsed = toml::parse(text, std::string_view(path));
    if (!parsed) {
        const toml::parse_error& problem = parsed.error();
        return wrong(fmt::format("{}:{}: {}", path, problem.source().begin.line, problem.description()));
    }
    return PolicyReader(path, token_file).read(parsed.table());
}

Result<Policy> Policy::load(const std::string& path, const std::string& token_file) {
    if (path.empty()) {
        return parse("", "", token_file);
    }
    const auto text = read_file(path, kMaxFileBytes);
    if (!text) {
        return text.error().within("the configuration file");
    }
    if (!text->has_value()) {
        return Error{ErrorCode::unavailable, "there is no configuration file " + path};
    }
    return parse(**text, path, token_file);
}

}  // namespace gpupool::policy
