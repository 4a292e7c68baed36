#include "common/units.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <span>

#include "common/trim.h"

namespace gpupool {
namespace {

struct Unit {
    std::string_view name;
    double factor;
};

constexpr double kKibi = 1024.0;
constexpr std::array kByteUnits = {
    Unit{"", 1},
    Unit{"b", 1},
    Unit{"k", kKibi},
    Unit{"m", kKibi* kKibi},
    Unit{"g", kKibi* kKibi* kKibi},
    Unit{"t", kKibi* kKibi* kKibi* kKibi},
    Unit{"kib", kKibi},
    Unit{"mib", kKibi* kKibi},
    Unit{"gib", kKibi* kKibi* kKibi},
    Unit{"tib", kKibi* kKibi* kKibi* kKibi},
    Unit{"kb", 1e3},
    Unit{"mb", 1e6},
    Unit{"gb", 1e9},
    Unit{"tb", 1e12},
};
constexpr std::array kDurationUnits = {
    Unit{"", 1e3}, Unit{"ms", 1}, Unit{"s", 1e3}, Unit{"m", 60e3}, Unit{"min", 60e3}, Unit{"h", 3600e3},
};

std::string lower(std::string_view text) {
    std::string result(text);
    std::transform(result.begin(), result.end(), result.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
    return result;
}

// Parses a number with one of the units, and returns it in the smallest unit. `kLimit` keeps the result exact in a
// double.
Result<std::uint64_t> amount(std::string_view text, std::span<const Unit> units, std::string_view expected) {
    constexpr double kLimit = 9007199254740992.0;  // 2^53
    const Error wrong{ErrorCode::invalid_input, fmt::format("'{}' is not {}", text, expected)};
    const std::string given = lower(trim(text));
    double value = 0;
    const auto [end, error] =
        std::from_chars(given.data(), given.data() + given.size(), value, std::chars_format::fixed);
    if (error != std::errc() || !std::isfinite(value) || value < 0) {
        return wrong;
    }
    const std::string_view name = trim(std::string_view(end, given.data() + given.size()));
    for (const Unit& unit : units) {
        if (unit.name != name) {
            continue;
        }
        const double result = value * unit.factor;
        if (result >= kLimit) {
            return Error{ErrorCode::limit_exceeded, fmt::format("'{}' is too large", text)};
        }
        return static_cast<std::uint64_t>(result + 0.5);
    }
    return wrong;
}

}  // namespace

Result<std::uint64_t> parse_bytes(std::string_view text) {
    return amount(text, kByteUnits, "a size such as 8GiB, 512MiB or 4096");
}

Result<std::chrono::milliseconds> parse_duration(std::string_view text) {
    auto result = amount(text, kDurationUnits, "a duration such as 5s, 250ms or 2m");
    if (!result) {
        return result.error();
    }
    return std::chrono::milliseconds(*result);
}

Result<bool> parse_switch(std::string_view text) {
    const std::string given = lower(trim(text));
    for (std::string_view yes : {"1", "true", "yes", "on"}) {
        if (given == yes) {
            return true;
        }
    }
    for (std::string_view no : {"0", "false", "no", "off", ""}) {
        if (given == no) {
            return false;
        }
    }
    return Error{ErrorCode::invalid_input, fmt::format("'{}' is not a switch: say 1 or 0", text)};
}

std::string format_bytes(std::uint64_t bytes) {
    constexpr std::array kNames = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = static_cast<double>(bytes);
    std::size_t unit = 0;
    for (; value >= kKibi && unit + 1 < kNames.size(); ++unit) {
        value /= kKibi;
    }
    return fmt::format("{:.4g} {}", value, kNames[unit]);
}

}  // namespace gpupool
