#include "server/daemon/config.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <toml++/toml.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <functional>
#include <iterator>
#include <map>
#include <set>
#include <span>
#include <sstream>

#include "common/environment.h"
#include "common/files.h"
#include "common/hash.h"
#include "common/log.h"
#include "common/units.h"
#include "server/isolation/users.h"
#include "server/policy/policy.h"
#include "server/supervision/runtime_directory.h"

namespace gpupool::daemon {

namespace {

using Setter = std::function<Status(const toml::node&)>;
using Keys = std::map<std::string, Setter, std::less<>>;

constexpr std::size_t kMaxTokens = 10000;
constexpr std::size_t kMinTokenBytes = 8;
constexpr std::size_t kMaxTokenBytes = 4096;

Error expected(std::string_view what) {
    return Error{ErrorCode::invalid_input, fmt::format("must be {}", what)};
}

Setter text(std::string& target) {
    return [&target](const toml::node& node) -> Status {
        const auto value = node.value_exact<std::string>();
        if (!value) {
            return expected("a string");
        }
        target = *value;
        return {};
    };
}

Setter yes_or_no(bool& target) {
    return [&target](const toml::node& node) -> Status {
        const auto value = node.value_exact<bool>();
        if (!value) {
            return expected("true or false");
        }
        target = *value;
        return {};
    };
}

// One address or a list of them.
Setter addresses(std::vector<std::string>& target) {
    return [&target](const toml::node& node) -> Status {
        std::vector<std::string> given;
        if (const auto* list = node.as_array()) {
            for (const auto& entry : *list) {
                const auto value = entry.value_exact<std::string>();
                if (!value) {
                    return expected("a string or a list of strings");
                }
                given.push_back(*value);
            }
        } else if (const auto value = node.value_exact<std::string>()) {
            given.push_back(*value);
        }
        if (given.empty() || given.size() > kMaxAddresses) {
            return expected(fmt::format("an address or a list of 1 to {} addresses", kMaxAddresses));
        }
        GPUPOOL_TRY(check_addresses(given));
        target = std::move(given);
        return {};
    };
}

Setter metrics_address(std::string& target) {
    return [&target](const toml::node& node) -> Status {
        const auto value = node.value_exact<std::string>();
        if (!value) {
            return expected("a string");
        }
        GPUPOOL_TRY(check_metrics_address(*value));
        target = *value;
        return {};
    };
}

Setter number(std::size_t& target, std::int64_t least, std::int64_t most) {
    return [=, &target](const toml::node& node) -> Status {
        const auto value = node.value_exact<std::int64_t>();
        if (!value || *value < least || *value > most) {
            return expected(fmt::format("a whole number from {} to {}", least, most));
        }
        target = static_cast<std::size_t>(*value);
        return {};
    };
}

Setter optional_number(std::optional<std::size_t>& target, std::int64_t least, std::int64_t most) {
    return [=, &target](const toml::node& node) -> Status {
        std::size_t value = 0;
        GPUPOOL_TRY(number(value, least, most)(node));
        target = value;
        return {};
    };
}

// Policy reads and checks it.
Setter of_policy() {
    return [](const toml::node&) -> Status { return {}; };
}

Setter duration(milliseconds& target, std::int64_t least_ms) {
    constexpr std::int64_t kMaxMs = 24 * 3600 * 1000;
    return [=, &target](const toml::node& node) -> Status {
        const auto value = node.value_exact<std::int64_t>();
        if (!value || *value < least_ms || *value > kMaxMs) {
            return expected(fmt::format("milliseconds, a whole number from {} to {}", least_ms, kMaxMs));
        }
        target = milliseconds(*value);
        return {};
    };
}

Status check_bytes(std::uint64_t given, std::uint64_t least) {
    if (given == 0) {
        return expected("more than 0, like \"8GiB\"; leave it out for the default");
    }
    if (given < least) {
        return expected(format_bytes(least) + " or more");
    }
    return {};
}

Setter bytes(std::uint64_t& target, std::uint64_t least = 1) {
    return [=, &target](const toml::node& node) -> Status {
        std::uint64_t given = 0;
        if (const auto number = node.value_exact<std::int64_t>(); number && *number >= 0) {
            given = static_cast<std::uint64_t>(*number);
        } else if (const auto value = node.value_exact<std::string>()) {
            const auto parsed = parse_bytes(*value);
            if (!parsed) {
                return parsed.error();
            }
            given = *parsed;
        } else {
            return expected("a number of bytes, or a string like \"8GiB\"");
        }
        GPUPOOL_TRY(check_bytes(given, least));
        target = given;
        return {};
    };
}

// A range of user ids or "off".
Setter worker_users(std::optional<std::string>& target) {
    return [&target](const toml::node& node) -> Status {
        const auto value = node.value_exact<std::string>();
        if (!value) {
            return expected("a string, a range of user ids or \"off\"");
        }
        if (const auto range = isolation::parse_users(*value); !range && *value != "off") {
            return range.error();
        }
        target = *value;
        return {};
    };
}

Setter seccomp_mode(isolation::Seccomp& target) {
    return [&target](const toml::node& node) -> Status {
        const auto mode = isolation::parse_seccomp(node.value_exact<std::string>().value_or(""));
        if (!mode) {
            return expected("\"enforce\", \"log\" or \"off\"");
        }
        target = *mode;
        return {};
    };
}

// An amount, or a string with others for single devices.
Setter quotas(Quotas& target, std::uint64_t least) {
    return [=, &target](const toml::node& node) -> Status {
        Quotas given;
        if (const auto value = node.value_exact<std::string>()) {
            auto parsed = parse_quotas(*value);
            if (!parsed) {
                return parsed.error();
            }
            given = std::move(*parsed);
            GPUPOOL_TRY(check_bytes(given.least_bytes(), least));
        } else {
            std::uint64_t each = 0;
            GPUPOOL_TRY(bytes(each, least)(node));
            given.each_bytes = each;
        }
        target = std::move(given);
        return {};
    };
}

Setter optional_bytes(std::optional<std::uint64_t>& target) {
    return [&target](const toml::node& node) -> Status {
        std::uint64_t value = 0;
        GPUPOOL_TRY(bytes(value)(node));
        target = value;
        return {};
    };
}

std::string place(const std::string& path, const toml::source_region& where) {
    return fmt::format("{}:{}", path, where.begin.line);
}

// Applies `keys` to `table`. Keys of the form "section.key" belong to sub-tables.
Status apply(const std::string& path, const toml::table& table, const std::string& prefix, const Keys& keys) {
    for (const auto& [key, node] : table) {
        const std::string name = prefix + std::string(key.str());
        if (prefix.empty() && policy::Policy::owns(name)) {
            continue;  // read with the policy
        }
        const auto setter = keys.find(name);
        if (setter != keys.end()) {
            if (const auto set = setter->second(node); !set) {
                return set.error().within(fmt::format("{}: {}", place(path, node.source()), name));
            }
        } else if (node.is_table() && prefix.empty() && keys.lower_bound(name + ".") != keys.end() &&
                   keys.lower_bound(name + ".")->first.starts_with(name + ".")) {
            GPUPOOL_TRY(apply(path, *node.as_table(), name + ".", keys));
        } else {
            return Error{ErrorCode::invalid_input,
                         fmt::format("{}: there is no setting {}", place(path, key.source()), name)};
        }
    }
    return {};
}

Keys keys_of(Config& config) {
    return Keys{
        {"listen", addresses(config.listen)},
        {"metrics", metrics_address(config.metrics)},
        {"local", yes_or_no(config.local)},
        {"driver", text(config.driver)},
        {"log_level", text(config.log_level)},
        {"log_file", text(config.log_file)},
        {"runtime_directory", text(config.runtime_directory)},
        {"worker", text(config.worker)},
        {"state_directory", text(config.state_directory)},
        {"stock.workers", optional_number(config.stock_workers, 0, kMaxStock)},
        {"stock.contexts", yes_or_no(config.stock_contexts)},
        {"images.directory", text(config.image_directory)},
        {"images.limit", bytes(config.image_limit_bytes)},
        {"isolation.users", worker_users(config.worker_users)},
        {"isolation.seccomp", seccomp_mode(config.seccomp)},
        {"isolation.landlock", yes_or_no(config.landlock)},
        {"limits.sessions", of_policy()},
        {"limits.handshakes", number(config.max_handshakes, 1, 4096)},
        {"limits.handshake_timeout_ms", duration(config.handshake_timeout, 10)},
        {"limits.hello_bytes", number(config.max_hello_bytes, 16 << 10, 128 << 10)},
        {"limits.session_memory", quotas(config.session_memory, kLeastSessionMemoryBytes)},
        {"limits.shared_memory", optional_bytes(config.shared_memory_bytes)},
        {"limits.lanes", number(config.max_lanes, 0, 64)},
        {"limits.issuers", optional_number(config.issuers, 0, 8)},
        {"workers.daemon_grace_ms", duration(config.daemon_grace, 0)},
        {"workers.stop_timeout_ms", duration(config.stop_timeout, 0)},
        {"workers.start_timeout_ms", duration(config.worker_start_timeout, 100)},
        {"workers.silence_timeout_ms", duration(config.worker_silence_timeout, 2000)},
        {"workers.ending_timeout_ms", duration(config.worker_ending_timeout, 10)},
        {"workers.probe_timeout_ms", duration(config.probe_timeout, 100)},
    };
}

// Reads a file that must exist.
Result<std::string> read_named_file(const char* what, const std::string& path, std::size_t most_bytes) {
    auto text = read_file(path, most_bytes);
    if (!text) {
        return text.error().within(fmt::format("the {}", what));
    }
    if (!text->has_value()) {
        return system_error(fmt::format("cannot read the {} {}", what, path), ENOENT);
    }
    return std::move(**text);
}

}  // namespace

Status check_addresses(const std::vector<std::string>& addresses) {
    std::set<std::string> seen;
    for (const std::string& address : addresses) {
        const auto endpoint = transport::Endpoint::parse(address, transport::kDefaultPort);
        if (!endpoint) {
            return endpoint.error();
        }
        const bool any_port = !endpoint->is_path() && endpoint->port == 0;
        if (!any_port && !seen.insert(endpoint->to_string()).second) {
            return Error{ErrorCode::invalid_input, endpoint->to_string() + " is given twice"};
        }
    }
    return {};
}

Status check_metrics_address(const std::string& address) {
    const auto endpoint = transport::Endpoint::parse(address);
    if (!endpoint) {
        return endpoint.error();
    }
    return endpoint->is_path() ? Status(expected("HOST:PORT: metrics are served by TCP")) : Status();
}

Result<std::uint64_t> parse_image_limit(const std::string& text) {
    auto bytes = parse_bytes(text);
    if (!bytes) {
        return bytes;
    }
    GPUPOOL_TRY(check_bytes(*bytes, 1));
    return bytes;
}

Status read_config_file(const std::string& path, Config& config) {
    const auto text = read_named_file("configuration file", path, 1u << 20);
    if (!text) {
        return text.error();
    }
    const toml::parse_result parsed = toml::parse(std::string_view(*text), std::string_view(path));
    if (!parsed) {
        const toml::parse_error& problem = parsed.error();
        return Error{ErrorCode::invalid_input,
                     fmt::format("{}: {}", place(path, problem.source()), problem.description())};
    }
    config.file = path;
    GPUPOOL_TRY(apply(path, parsed.table(), "", keys_of(config)));
    const auto policy = policy::Policy::parse(*text, path);  // only to check it: the tenancy reads it
    return policy ? Status() : policy.error();
}

namespace {

std::string default_image_directory() {
    const auto variable = [](const char* name) { return environment::text(name).value_or(""); };
    if (const std::string cache = variable("XDG_CACHE_HOME"); cache.starts_with('/')) {
        return cache + "/gpupool/images";
    }
    if (const std::string home = variable("HOME"); ::geteuid() != 0 && home.starts_with('/')) {
        return home + "/.cache/gpupool/images";
    }
    return ::geteuid() == 0 ? "/var/cache/gpupool/images" : fmt::format("/tmp/gpupool-images-{}", ::geteuid());
}

Status make_image_directory(const std::string& path) {
    // Creates missing parent directories with the usual permissions.
    for (std::size_t at = path.find('/', 1); at != std::string::npos; at = path.find('/', at + 1)) {
        ::mkdir(path.substr(0, at).c_str(), 0755);
    }
    GPUPOOL_TRY(supervision::make_private_directory(path));
    const std::string trial = fmt::format("{}/.trial-{}", path, ::getpid());
    const UniqueFd file(::open(trial.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!file) {
        return system_error("cannot write into " + path, errno);
    }
    ::unlink(trial.c_str());
    return {};
}

}  // namespace

Status choose_image_directory(Config& config) {
    if (config.image_directory == "off") {
        config.image_directory.clear();
        return {};
    }
    if (config.image_directory.empty()) {
        config.image_directory = default_image_directory();
    }
    if (!config.image_directory.starts_with('/')) {
        return Error{ErrorCode::invalid_input,
                     fmt::format("images.directory: {} does not begin with /", config.image_directory)};
    }
    return {};
}

void prepare_image_directory(Config& config) {
    Status made = choose_image_directory(config);
    if (made && !config.image_directory.empty()) {
        made = make_image_directory(config.image_directory);
    }
    if (!made) {
        log::warn("code images are not kept, so every session sends its own: {}", made.error().message);
        config.image_directory.clear();
    }
}

Status set_up_log(const Config& config) {
    const auto level = log::parse_level(config.log_level);
    if (!level) {
        return level.error().within("log_level");
    }
    if (!config.log_file.empty()) {
        return log::to_file(config.log_file, *level);
    }
    log::to_stderr(*level);
    return {};
}

namespace {

std::string default_state_directory() {
    if (::geteuid() == 0) {
        return "/var/lib/gpupool";
    }
    if (const auto state = environment::text("XDG_STATE_HOME"); state && state->starts_with('/')) {
        return *state + "/gpupool";
    }
    const auto home = environment::text("HOME");
    return home && home->starts_with('/') ? *home + "/.local/state/gpupool" : std::string();
}

}  // namespace

std::string runtime_name(const transport::Endpoint& address) {
    return address.is_path() ? fmt::format("unix-{:016x}", fingerprint(std::as_bytes(std::span(address.path))).low)
                             : fmt::to_string(address.port);
}

Status choose_state_directory(Config& config) {
    if (config.state_directory == "off") {
        config.state_directory.clear();
        return {};
    }
    if (config.state_directory.empty()) {
        // A server for each address. One at a free port has another address the next time.
        const auto address = transport::Endpoint::parse(config.listen.front(), transport::kDefaultPort);
        const std::string base = default_state_directory();
        if (address && !base.empty() && (address->is_path() || address->port != 0)) {
            config.state_directory = base + "/" + runtime_name(*address);
        }
    }
    if (!config.state_directory.empty() && !config.state_directory.starts_with('/')) {
        return Error{ErrorCode::invalid_input,
                     fmt::format("state_directory: {} does not begin with /", config.state_directory)};
    }
    return {};
}

}  // namespace gpupool::daemon
