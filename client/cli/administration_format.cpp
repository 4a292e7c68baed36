#include "client/cli/administration_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <nlohmann/json.hpp>

#include "common/units.h"

namespace gpupool::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kDayMs = 86'400'000;

std::string trimmed_line(const std::string& text) {
    return text.substr(0, text.find_last_not_of(' ') + 1) + "\n";
}

std::string day_of(std::int64_t unix_ms) {
    return format_day(unix_ms / kDayMs);
}

std::string hours(double seconds) {
    return fmt::format("{:.2f} h", seconds / 3600);
}

struct TextWriter {
    std::string operator()(const messages::AdministrationError& answer) const { return answer.message + "\n"; }
    std::string operator()(const messages::Done& answer) const { return answer.message + "\n"; }
    std::string operator()(const messages::NewToken& answer) const { return answer.token + "\n"; }

    std::string operator()(const messages::TenantList& answer) const {
        constexpr auto kRow = "{:<32}  {:<13}  {:>8}  {:>4}  {:>10}  {}";
        std::string out = trimmed_line(fmt::format(kRow, "NAME", "ROLE", "SESSIONS", "GPUS", "PROMISED", "TOKENS"));
        for (const auto& tenant : answer.tenants) {
            std::string tokens;
            for (const auto& token : tenant.tokens) {
                tokens += fmt::format("{}{}:{}{}", tokens.empty() ? "" : ", ", token.id, token.fingerprint,
                                      token.ends_ms == 0 ? "" : " until " + day_of(token.ends_ms));
            }
            out += trimmed_line(fmt::format(kRow, tenant.name, tenant.administrator ? "administrator" : "tenant",
                                            tenant.sessions, tenant.gpus, format_bytes(tenant.promised_bytes),
                                            tokens.empty() ? (tenant.configured ? "in the file" : "none") : tokens));
        }
        return answer.tenants.empty() ? out + "none\n" : out;
    }

    std::string operator()(const messages::LimitList& answer) const {
        constexpr auto kRow = "{:<16}  {:<24}  {}";
        std::string out = trimmed_line(fmt::format(kRow, "LIMIT", "VALUE", "SET BY"));
        for (const auto& limit : answer.limits) {
            out += trimmed_line(fmt::format(kRow, limit.key, limit.value, limit.origin));
        }
        return out;
    }

    std::string operator()(const messages::UsageList& answer) const {
        constexpr auto kRow = "{:<10}  {:<32}  {:>8}  {:>12}  {:>14}  {:>10}  {:>10}";
        std::string out = trimmed_line(
            fmt::format(kRow, "DAY", "TENANT", "SESSIONS", "GPU TIME", "GiB x TIME", "COPIED IN", "COPIED OUT"));
        for (const auto& row : answer.rows) {
            constexpr double kGiB = 1u << 30;
            out += trimmed_line(fmt::format(kRow, format_day(row.day), row.tenant, row.sessions,
                                            hours(static_cast<double>(row.gpu_ms) / 1000),
                                            hours(static_cast<double>(row.byte_seconds) / kGiB),
                                            format_bytes(row.bytes_in), format_bytes(row.bytes_out)));
        }
        return answer.rows.empty() ? out + "none\n" : out;
    }
};

struct JsonWriter {
    Json operator()(const messages::AdministrationError& answer) const { return {{"error", answer.message}}; }
    Json operator()(const messages::Done& answer) const { return {{"done", answer.message}}; }
    Json operator()(const messages::NewToken& answer) const {
        return {{"name", answer.name}, {"token_id", answer.id}, {"token", answer.token}};
    }

    Json operator()(const messages::TenantList& answer) const {
        Json json{{"tenants", Json::array()}};
        for (const auto& tenant : answer.tenants) {
            Json tokens = Json::array();
            for (const auto& token : tenant.tokens) {
                tokens.push_back(
                    {{"id", token.id}, {"fingerprint", token.fingerprint}, {"made_unix_ms", token.made_ms}});
                if (token.ends_ms != 0) {
                    tokens.back()["ends_unix_ms"] = token.ends_ms;
                }
            }
            json["tenants"].push_back({{"name", tenant.name},
                                       {"administrator", tenant.administrator},
                                       {"configured", tenant.configured},
                                       {"sessions", tenant.sessions},
                                       {"gpus", tenant.gpus},
                                       {"promised_bytes", tenant.promised_bytes},
                                       {"tokens", std::move(tokens)}});
            if (tenant.added_ms != 0) {
                json["tenants"].back()["added_unix_ms"] = tenant.added_ms;
            }
        }
        return json;
    }

    Json operator()(const messages::LimitList& answer) const {
        Json json{{"limits", Json::object()}};
        for (const auto& limit : answer.limits) {
            json["limits"][limit.key] = {{"value", limit.value}, {"origin", limit.origin}};
        }
        return json;
    }

    Json operator()(const messages::UsageList& answer) const {
        Json json{{"usage", Json::array()}};
        for (const auto& row : answer.rows) {
            json["usage"].push_back({{"day", format_day(row.day)},
                                     {"tenant", row.tenant},
                                     {"sessions", row.sessions},
                                     {"gpu_seconds", static_cast<double>(row.gpu_ms) / 1000},
                                     {"byte_seconds", row.byte_seconds},
                                     {"bytes_in", row.bytes_in},
                                     {"bytes_out", row.bytes_out}});
        }
        return json;
    }
};

}  // namespace

std::string answer_text(const messages::AdministrationAnswer& answer) {
    return std::visit(TextWriter{}, answer);
}

std::string answer_json(const messages::AdministrationAnswer& answer) {
    return std::visit(JsonWriter{}, answer).dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

Result<std::int64_t> parse_day(const std::string& text) {
    int year = 0;
    unsigned month = 0, day = 0;
    const auto number = [&text](std::size_t from, std::size_t count, auto& value) {
        const char* const begin = text.data() + from;
        const auto read = std::from_chars(begin, begin + count, value);
        return read.ec == std::errc() && read.ptr == begin + count;
    };
    const bool read = text.size() == 10 && text[4] == '-' && text[7] == '-' && number(0, 4, year) &&
                      number(5, 2, month) && number(8, 2, day);
    const std::chrono::year_month_day date{std::chrono::year(year), std::chrono::month(month), std::chrono::day(day)};
    if (!read || !date.ok()) {
        return Error{ErrorCode::invalid_input, fmt::format("'{}' is not a day like 2026-11-30", text)};
    }
    return std::int64_t{std::chrono::sys_days(date).time_since_epoch().count()};
}

std::string format_day(std::int64_t day) {
    // Days that no calendar has come only from a server that is not one.
    constexpr std::int64_t kMost = 1'000'000;
    const std::chrono::year_month_day date{
        std::chrono::sys_days(std::chrono::days(std::clamp<std::int64_t>(day, -kMost, kMost)))};
    return fmt::format("{:04}-{:02}-{:02}", static_cast<int>(date.year()), static_cast<unsigned>(date.month()),
                       static_cast<unsigned>(date.day()));
}

}  // namespace gpupool::cli
