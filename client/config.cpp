#include "client/config.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <string_view>

#include "common/environment.h"
#include "common/files.h"
#include "common/processors.h"
#include "common/spin.h"
#include "common/units.h"

namespace gpupool::client {
namespace {

constexpr std::size_t kMaxConfigBytes = 64 * 1024;
constexpr std::size_t kMaxTokenBytes = 4096;
constexpr std::uint64_t kMaxTraceEvents = 1'000'000'000;
constexpr std::size_t kMaxLanes = 64;
constexpr std::size_t kMaxDefaultLanes = 8;
constexpr std::chrono::milliseconds kMinConnectTimeout{1};
constexpr std::chrono::milliseconds kMaxConnectTimeout = std::chrono::minutes(10);
constexpr std::chrono::milliseconds kMaxWaitWhenFull = std::chrono::hours(24);

// The settings read so far. The token's file is read at the end, if it is still wanted.
struct Draft {
    Config config;
    std::string token_file;
    std::string folder;  // folder of the file being read: a relative token file is relative to it
};

Error invalid(std::string message) {
    return Error{ErrorCode::invalid_input, std::move(message)};
}

std::string_view trim_end(std::string_view text) {
    const auto last = text.find_last_not_of(" \t\r\n");
    return last == std::string_view::npos ? std::string_view() : text.substr(0, last + 1);
}

Status set_server(Draft& draft, std::string_view value) {
    const auto endpoint = transport::Endpoint::parse(value, transport::kDefaultPort);
    if (!endpoint) {
        return endpoint.error();
    }
    draft.config.server = endpoint->to_string();
    return {};
}

Status set_transport(Draft& draft, std::string_view value) {
    auto choice = transport::parse_choice(value);
    if (!choice) {
        return choice.error();
    }
    draft.config.transport = *choice;
    return {};
}

Status set_token(Draft& draft, std::string_view value) {
    if (value.size() > kMaxTokenBytes) {
        return invalid(fmt::format("a token has at most {} bytes", kMaxTokenBytes));
    }
    draft.config.token = value;
    draft.token_file.clear();
    return {};
}

Status set_token_file(Draft& draft, std::string_view value) {
    draft.token_file = value;
    if (!value.starts_with('/') && !draft.folder.empty()) {
        draft.token_file = draft.folder + "/" + std::string(value);
    }
    draft.config.token.clear();
    return {};
}

Status set_job(Draft& draft, std::string_view value) {
    constexpr std::size_t kMaxBytes = 64;
    if (value.size() > kMaxBytes || !std::all_of(value.begin(), value.end(), [](char c) {
            return std::isalnum(static_cast<unsigned char>(c)) != 0;
        })) {
        return invalid(fmt::format("a job's name must consist of at most {} letters and digits", kMaxBytes));
    }
    draft.config.job = value;
    return {};
}

Status set_memory(Draft& draft, std::string_view value) {
    auto quotas = parse_quotas(value);
    if (!quotas) {
        return quotas.error();
    }
    if (quotas->least_bytes() < kLeastSessionMemoryBytes) {
        return invalid(fmt::format("the memory to ask for must be {} or more", format_bytes(kLeastSessionMemoryBytes)));
    }
    draft.config.memory = std::move(*quotas);
    return {};
}

Result<std::uint64_t> whole_number(std::string_view value, std::uint64_t least, std::uint64_t most) {
    std::uint64_t number = 0;
    const auto [end, problem] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (problem != std::errc() || end != value.data() + value.size() || number < least || number > most) {
        return invalid(fmt::format("'{}' is not a whole number from {} to {}", value, least, most));
    }
    return number;
}

Status set_gpus(Draft& draft, std::string_view value) {
    const auto gpus = whole_number(value, 1, Quotas::kMaxDevices);
    if (!gpus) {
        return gpus.error();
    }
    draft.config.gpus = static_cast<std::size_t>(*gpus);
    return {};
}

Status set_class(Draft& draft, std::string_view value) {
    const auto session_class = parse_session_class(value);
    if (!session_class) {
        return session_class.error();
    }
    draft.config.session_class = *session_class;
    return {};
}

Status set_priority(Draft& draft, std::string_view value) {
    const auto priority = whole_number(value, 0, kMaxPriority);
    if (!priority) {
        return priority.error();
    }
    draft.config.priority = *priority;
    return {};
}

std::string file_name(std::string_view value) {
    return std::string(value == "stderr" || value == "/dev/stderr" ? kStandardErrorName : value);
}

Status set_log(Draft& draft, std::string_view value) {
    draft.config.log_file = file_name(value);
    return {};
}

Status set_log_level(Draft& draft, std::string_view value) {
    auto level = log::parse_level(value);
    if (!level) {
        return level.error();
    }
    draft.config.log_level = *level;
    return {};
}

Status set_connect_timeout(Draft& draft, std::string_view value) {
    auto timeout = parse_duration(value);
    if (!timeout) {
        return timeout.error();
    }
    if (*timeout < kMinConnectTimeout || *timeout > kMaxConnectTimeout) {
        return invalid(fmt::format("'{}' is not between 1ms and 10m", value));
    }
    draft.config.connect_timeout = *timeout;
    return {};
}

Status set_wait_when_full(Draft& draft, std::string_view value) {
    auto wait = parse_duration(value);
    if (!wait) {
        return wait.error();
    }
    if (*wait > kMaxWaitWhenFull) {
        return invalid(fmt::format("'{}' is more than 24h", value));
    }
    draft.config.wait_when_full = *wait;
    return {};
}

Status set_lanes(Draft& draft, std::string_view value) {
    const auto lanes = whole_number(value, 1, kMaxLanes);
    if (!lanes) {
        return lanes.error();
    }
    draft.config.lanes = static_cast<std::size_t>(*lanes);
    return {};
}

Status set_compression(Draft& draft, std::string_view value) {
    using Mode = wire::CompressionMode;
    if (value != "auto" && value != "never" && value != "always") {
        return invalid(fmt::format("'{}' is not auto, never or always", value));
    }
    draft.config.compression = value == "auto" ? Mode::when_it_pays : value == "never" ? Mode::never : Mode::always;
    return {};
}

Status set_verbose(Draft& draft, std::string_view value) {
    auto on = parse_switch(value);
    if (!on) {
        return on.error();
    }
    draft.config.verbose = *on;
    return {};
}

Status set_sync(Draft& draft, std::string_view value) {
    auto on = parse_switch(value);
    if (!on) {
        return on.error();
    }
    draft.config.synchronous = *on;
    return {};
}

// A file name, or a switch: "on" means standard error.
std::string output_name(std::string_view value) {
    if (auto on = parse_switch(value)) {
        return *on ? kStandardErrorName : "";
    }
    return file_name(value);
}

Status set_trace(Draft& draft, std::string_view value) {
    draft.config.trace_file = output_name(value);
    return {};
}

Status set_trace_events(Draft& draft, std::string_view value) {
    const auto events = whole_number(value, 1, kMaxTraceEvents);
    if (!events) {
        return events.error();
    }
    draft.config.trace_events = *events;
    return {};
}

Status set_summary(Draft& draft, std::string_view value) {
    draft.config.summary_file = output_name(value);
    return {};
}

struct Setting {
    std::string_view key;
    const char* variable;
    Status (*set)(Draft&, std::string_view);
};

constexpr std::array kSettings = {
    Setting{"server", "GPUPOOL_SERVER", set_server},
    Setting{"transport", "GPUPOOL_TRANSPORT", set_transport},
    Setting{"token", "GPUPOOL_TOKEN", set_token},
    Setting{"token_file", "GPUPOOL_TOKEN_FILE", set_token_file},
    Setting{"memory", "GPUPOOL_MEMORY", set_memory},
    Setting{"gpus", "GPUPOOL_GPUS", set_gpus},
    Setting{"class", "GPUPOOL_CLASS", set_class},
    Setting{"priority", "GPUPOOL_PRIORITY", set_priority},
    Setting{"job", "GPUPOOL_JOB", set_job},
    Setting{"log", "GPUPOOL_LOG", set_log},
    Setting{"log_level", "GPUPOOL_LOG_LEVEL", set_log_level},
    Setting{"connect_timeout", "GPUPOOL_CONNECT_TIMEOUT", set_connect_timeout},
    Setting{"wait_when_full", "GPUPOOL_WAIT_WHEN_FULL", set_wait_when_full},
    Setting{"lanes", "GPUPOOL_LANES", set_lanes},
    Setting{"compression", "GPUPOOL_COMPRESSION", set_compression},
    Setting{"verbose", "GPUPOOL_VERBOSE", set_verbose},
    Setting{"sync", "GPUPOOL_SYNC", set_sync},
    Setting{"trace", "GPUPOOL_TRACE", set_trace},
    Setting{"trace_events", "GPUPOOL_TRACE_EVENTS", set_trace_events},
    Setting{"summary", "GPUPOOL_SUMMARY", set_summary},
};

const Setting* find_setting(std::string_view key) {
    for (const Setting& setting : kSettings) {
        if (setting.key == key) {
            return &setting;
        }
    }
    return nullptr;
}

std::string known_keys() {
    std::string keys;
    for (const Setting& setting : kSettings) {
        keys += (keys.empty() ? "" : ", ") + std::string(setting.key);
    }
    return keys;
}

// A setting's value as text, because the parsers take what the environment contains.
Result<std::string> value_text(const toml::node& node) {
    if (const auto* text = node.as_string()) {
        return text->get();
    }
    if (const auto* number = node.as_integer()) {
        return fmt::to_string(number->get());
    }
    if (const auto* number = node.as_floating_point()) {
        return fmt::to_string(number->get());
    }
    if (const auto* on = node.as_boolean()) {
        return std::string(on->get() ? "1" : "0");
    }
    return invalid("expected a string, a number or true/false");
}

Status read_table(Draft& draft, const toml::table& table, const std::string& path) {
    const auto place = [&path](const toml::source_region& source, std::string_view key) {
        return fmt::format("{}:{}: {}", path, source.begin.line, key);
    };
    for (auto&& [key, node] : table) {
        const Setting* setting = find_setting(key.str());
        if (setting == nullptr) {
            return invalid(fmt::format("unknown setting; known are {}", known_keys()))
                .within(place(key.source(), key.str()));
        }
        auto text = value_text(node);
        if (!text) {
            return text.error().within(place(node.source(), key.str()));
        }
        if (auto status = setting->set(draft, *text); !status) {
            return status.error().within(place(node.source(), key.str()));
        }
    }
    if (table.contains("token") && table.contains("token_file")) {
        return invalid("give either token or token_file").within(path);
    }
    return {};
}

// False if there is no such file.
Result<bool> read_config_file(Draft& draft, const std::string& path) {
    auto text = read_file(path, kMaxConfigBytes);
    if (!text) {
        return text.error();
    }
    if (!text->has_value()) {
        return false;
    }
    const toml::parse_result parsed = toml::parse(std::string_view(**text), std::string_view(path));
    if (!parsed) {
        const toml::parse_error& problem = parsed.error();
        return invalid(fmt::format("{}:{}:{}: {}", path, problem.source().begin.line, problem.source().begin.column,
                                   problem.description()));
    }
    const auto slash = path.rfind('/');
    draft.folder = slash == std::string::npos ? "." : path.substr(0, slash);
    GPUPOOL_TRY(read_table(draft, parsed.table(), path));
    draft.folder.clear();
    draft.config.source = path;
    return true;
}

Status read_first_file(Draft& draft, const Environment& environment, const std::string& system_file) {
    const auto named = [&environment](const char* variable) { return environment(variable).value_or(""); };
    if (const std::string given = named("GPUPOOL_CONFIG"); !given.empty()) {
        auto found = read_config_file(draft, given);
        if (!found) {
            return found.error();
        }
        if (!*found) {
            return Error{ErrorCode::unavailable, "GPUPOOL_CONFIG: there is no file " + given};
        }
        return {};
    }
    const std::string xdg = named("XDG_CONFIG_HOME");
    const std::string home = named("HOME");
    const std::array candidates = {xdg.empty() ? "" : xdg + "/gpupool/client.toml",
                                   home.empty() ? "" : home + "/.config/gpupool/client.toml", system_file};
    for (const std::string& path : candidates) {
        if (path.empty()) {
            continue;
        }
        auto found = read_config_file(draft, path);
        if (!found) {
            return found.error();
        }
        if (*found) {
            return {};
        }
    }
    return {};
}

Status read_environment(Draft& draft, const Environment& environment) {
    for (const Setting& setting : kSettings) {
        const auto value = environment(setting.variable);
        if (!value || value->empty()) {
            continue;
        }
        if (auto status = setting.set(draft, *value); !status) {
            return status.error().within(setting.variable);
        }
    }
    GPUPOOL_TRY(check_spin_setting(environment("GPUPOOL_SPIN").value_or("")));
    if (!environment("GPUPOOL_TOKEN").value_or("").empty() && !environment("GPUPOOL_TOKEN_FILE").value_or("").empty()) {
        return invalid("give either GPUPOOL_TOKEN or GPUPOOL_TOKEN_FILE");
    }
    return {};
}

Status read_token(Draft& draft) {
    if (draft.token_file.empty()) {
        return {};
    }
    auto text = read_file(draft.token_file, kMaxTokenBytes);
    if (!text) {
        return text.error().within("token file");
    }
    if (!text->has_value()) {
        return Error{ErrorCode::unavailable, "there is no token file " + draft.token_file};
    }
    draft.config.token = trim_end(**text);
    if (draft.config.token.empty()) {
        return invalid("the token file " + draft.token_file + " is empty");
    }
    return {};
}

}  // namespace

std::size_t default_lanes() {
    return std::clamp<std::size_t>(processors_allowed() / 2, 1, kMaxDefaultLanes);
}

Result<Config> load_config() {
    return load_config([](const char* name) { return environment::raw(name); }, "/etc/gpupool/client.toml");
}

Result<Config> load_config(const Environment& environment, const std::string& system_file) {
    Draft draft;
    if (auto status = read_first_file(draft, environment, system_file); !status) {
        return status.error();
    }
    if (auto status = read_environment(draft, environment); !status) {
        return status.error();
    }
    if (auto status = read_token(draft); !status) {
        return status.error();
    }
    return std::move(draft.config);
}

Status open_log(const Config& config) {
    if (config.log_file.empty() || config.log_level == log::Level::off) {
        return {};
    }
    if (config.log_file == kStandardErrorName) {
        log::to_stderr(config.log_level);
        return {};
    }
    return log::to_file(config.log_file, config.log_level);
}

}  // namespace gpupool::client
