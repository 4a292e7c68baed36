#include "server/policy/limits.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "common/units.h"

namespace gpupool::policy {
namespace {

constexpr std::uint64_t kMaxCount = 1'000'000'000;
constexpr std::uint64_t kMaxDurationMs = std::uint64_t{366} * 24 * 3600 * 1000;

constexpr std::array<LimitFacts, kLimitCount> kFacts{{
    {Limit::memory, "memory", LimitKind::quotas, kLeastSessionMemoryBytes, false},
    {Limit::default_memory, "default_memory", LimitKind::quotas, kLeastSessionMemoryBytes, false},
    {Limit::gpus, "gpus", LimitKind::count, 1, false},
    {Limit::default_gpus, "default_gpus", LimitKind::count, 1, false},
    {Limit::session_class, "class", LimitKind::session_class, 0, false},
    {Limit::priority, "priority", LimitKind::priority, 0, false},
    {Limit::sessions, "sessions", LimitKind::count, 0, false},
    {Limit::total_gpus, "total_gpus", LimitKind::count, 1, false},
    {Limit::total_memory, "total_memory", LimitKind::bytes, kLeastSessionMemoryBytes, false},
    {Limit::copy_bandwidth, "copy_bandwidth", LimitKind::bandwidth, 64u << 10, true},
    {Limit::pinned_memory, "pinned_memory", LimitKind::bytes, 0, true},
    {Limit::handles, "handles", LimitKind::count, 100, true},
    {Limit::idle_time, "idle_time", LimitKind::duration, 1000, true},
    {Limit::life_time, "life_time", LimitKind::duration, 1000, true},
}};

static_assert([] {
    for (std::size_t i = 0; i < kFacts.size(); ++i) {
        if (static_cast<std::size_t>(kFacts[i].limit) != i) {
            return false;
        }
    }
    return true;
}());

Error must_be(const std::string& what) {
    return Error{ErrorCode::invalid_input, fmt::format("must be {}", what)};
}

Result<LimitValue> parse_count(std::string_view text, std::uint64_t least, std::uint64_t most) {
    LimitValue value;
    const auto read = std::from_chars(text.data(), text.data() + text.size(), value.number);
    if (read.ec != std::errc() || read.ptr != text.data() + text.size() || value.number < least ||
        value.number > most) {
        return must_be(fmt::format("a whole number from {} to {}, or \"none\", not '{}'", least, most, text));
    }
    return value;
}

Result<LimitValue> parse_bytes_limit(std::string_view text, std::uint64_t least) {
    auto bytes = parse_bytes(text);
    if (!bytes) {
        return bytes.error();
    }
    if (*bytes < least || *bytes == kNoLimit) {
        return must_be(fmt::format("{} or more, or \"none\", not '{}'", exact_bytes(least), text));
    }
    return LimitValue{*bytes, {}};
}

// "1GiB/s"; the "/s" may be omitted.
Result<LimitValue> parse_bandwidth(std::string_view text, std::uint64_t least) {
    return parse_bytes_limit(text.ends_with("/s") ? text.substr(0, text.size() - 2) : text, least);
}

Result<LimitValue> parse_quotas_limit(std::string_view text, std::uint64_t least) {
    auto quotas = parse_quotas(text);
    if (!quotas) {
        return quotas.error();
    }
    if (quotas->least_bytes() < least) {
        return must_be(fmt::format("{} or more, or \"none\", not '{}'", exact_bytes(least), text));
    }
    return LimitValue{kNoLimit, std::move(*quotas)};
}

Result<LimitValue> parse_duration_limit(std::string_view text, std::uint64_t least) {
    const auto duration = parse_duration(text);
    if (!duration) {
        return duration.error();
    }
    const auto given_ms = static_cast<std::uint64_t>(std::max<std::int64_t>(duration->count(), 0));
    if (given_ms < least || given_ms > kMaxDurationMs) {
        return must_be(fmt::format("from {} s to 366 days, or \"none\", not '{}'", least / 1000, text));
    }
    return LimitValue{given_ms, {}};
}

std::string exact_duration(std::uint64_t milliseconds_given) {
    constexpr std::array<std::pair<std::uint64_t, const char*>, 3> kUnits{{{3600000, "h"}, {60000, "m"}, {1000, "s"}}};
    for (const auto& [unit_ms, name] : kUnits) {
        if (milliseconds_given != 0 && milliseconds_given % unit_ms == 0) {
            return fmt::format("{}{}", milliseconds_given / unit_ms, name);
        }
    }
    return fmt::format("{}ms", milliseconds_given);
}

}  // namespace

std::span<const LimitFacts, kLimitCount> all_limits() {
    return kFacts;
}

const LimitFacts& facts_of(Limit limit) {
    return kFacts[static_cast<std::size_t>(limit)];
}

const LimitFacts* find_limit(std::string_view key) {
    const auto* const found =
        std::find_if(kFacts.begin(), kFacts.end(), [key](const LimitFacts& facts) { return facts.key == key; });
    return found == kFacts.end() ? nullptr : found;
}

Result<LimitValue> parse_limit(Limit limit, std::string_view text) {
    const LimitFacts& facts = facts_of(limit);
    if (text == "none" && facts.kind != LimitKind::session_class && facts.kind != LimitKind::priority) {
        return LimitValue{};
    }
    switch (facts.kind) {
        case LimitKind::quotas: return parse_quotas_limit(text, facts.least);
        case LimitKind::bytes: return parse_bytes_limit(text, facts.least);
        case LimitKind::bandwidth: return parse_bandwidth(text, facts.least);
        case LimitKind::count: return parse_count(text, facts.least, kMaxCount);
        case LimitKind::priority: return parse_count(text, facts.least, kMaxPriority);
        case LimitKind::duration: return parse_duration_limit(text, facts.least);
        case LimitKind::session_class: break;
    }
    const auto session_class = parse_session_class(text);
    if (!session_class) {
        return session_class.error();
    }
    return LimitValue{static_cast<std::uint64_t>(*session_class), {}};
}

std::string exact_bytes(std::uint64_t bytes) {
    constexpr std::array kNames = {"TiB", "GiB", "MiB", "KiB"};
    std::uint64_t unit = std::uint64_t{1} << 40;
    for (const char* name : kNames) {
        if (bytes >= unit && bytes % unit == 0) {
            return fmt::format("{}{}", bytes / unit, name);
        }
        unit >>= 10;
    }
    return fmt::to_string(bytes);
}

std::string exact_quotas(const Quotas& quotas) {
    std::string text = quotas.each_bytes ? exact_bytes(*quotas.each_bytes) : std::string();
    for (const auto& [device, bytes] : quotas.of_device) {
        text += fmt::format("{}{}={}", text.empty() ? "" : ",", device, exact_bytes(bytes));
    }
    return text.empty() ? "none" : text;
}

std::string format_limit(Limit limit, const LimitValue& value) {
    const LimitKind kind = facts_of(limit).kind;
    if (kind == LimitKind::quotas) {
        return exact_quotas(value.quotas);
    }
    if (value.number == kNoLimit) {
        return "none";
    }
    switch (kind) {
        case LimitKind::bytes: return exact_bytes(value.number);
        case LimitKind::bandwidth: return exact_bytes(value.number) + "/s";
        case LimitKind::duration: return exact_duration(value.number);
        case LimitKind::session_class: return std::string(name_of(static_cast<SessionClass>(value.number)));
        default: return fmt::to_string(value.number);
    }
}

bool Limits::any() const {
    return std::any_of(values_.begin(), values_.end(), [](const auto& value) { return value.has_value(); });
}

void Limits::apply(const Limits& other) {
    for (std::size_t i = 0; i < kLimitCount; ++i) {
        if (other.values_[i]) {
            values_[i] = other.values_[i];
        }
    }
}

Effective effective(const Limits& limits) {
    Effective all;
    const auto number = [&limits](Limit limit, std::uint64_t otherwise) {
        const auto& value = limits.get(limit);
        return value ? value->number : otherwise;
    };
    const auto quotas = [&limits](Limit limit) {
        const auto& value = limits.get(limit);
        return value ? value->quotas : Quotas();
    };
    all.memory = quotas(Limit::memory);
    all.default_memory = quotas(Limit::default_memory);
    all.gpus = number(Limit::gpus, all.gpus);
    all.default_gpus = std::min(number(Limit::default_gpus, all.default_gpus), all.gpus);
    all.session_class =
        static_cast<SessionClass>(number(Limit::session_class, static_cast<std::uint64_t>(all.session_class)));
    all.priority = number(Limit::priority, all.priority);
    all.sessions = number(Limit::sessions, all.sessions);
    all.total_gpus = number(Limit::total_gpus, all.total_gpus);
    all.total_memory_bytes = number(Limit::total_memory, all.total_memory_bytes);
    all.copy_bandwidth = number(Limit::copy_bandwidth, all.copy_bandwidth);
    all.pinned_memory_bytes = number(Limit::pinned_memory, all.pinned_memory_bytes);
    all.handles = number(Limit::handles, all.handles);
    all.idle_time_ms = number(Limit::idle_time, all.idle_time_ms);
    all.life_time_ms = number(Limit::life_time, all.life_time_ms);
    return all;
}

namespace {

// The end of a time that began at `from_ms`; nullopt: it has none.
std::optional<std::int64_t> end_of(std::int64_t from_ms, std::uint64_t time_ms) {
    return time_ms == kNoLimit ? std::nullopt : std::optional(from_ms + static_cast<std::int64_t>(time_ms));
}

}  // namespace

std::optional<std::string> end_reason(const Effective& limits, std::int64_t started_ms, std::int64_t last_active_ms,
                                      std::int64_t now_ms) {
    if (const auto end = end_of(started_ms, limits.life_time_ms); end && now_ms >= *end) {
        return fmt::format("the session has reached its life time of {} (life_time)",
                           exact_duration(limits.life_time_ms));
    }
    if (const auto end = end_of(last_active_ms, limits.idle_time_ms); end && now_ms >= *end) {
        return fmt::format("the session has been idle for {} (idle_time)", exact_duration(limits.idle_time_ms));
    }
    return std::nullopt;
}

}  // namespace gpupool::policy
