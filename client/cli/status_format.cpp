#include "client/cli/status_format.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "common/units.h"

namespace gpupool::cli {

std::string age_text(std::uint64_t seconds) {
    if (seconds < 60) {
        return fmt::format("{} s", seconds);
    }
    if (seconds < 60 * 60) {
        return fmt::format("{} min", seconds / 60);
    }
    if (seconds < 48 * 3600) {
        return fmt::format("{} h", seconds / 3600);
    }
    return fmt::format("{} d", seconds / 86400);
}

std::string cut_text(std::string text, std::size_t columns) {
    if (text.size() > columns) {
        text.resize(columns - 1);
        text += '~';
    }
    return text;
}

std::string waits_text(const SessionStatus& session) {
    std::string out;
    for (const auto& [reason, entries] : session.waits) {
        out += fmt::format("{}{} {}", out.empty() ? "" : ", ", reason, entries);
    }
    return out;
}

std::string devices_text(const SessionStatus& session) {
    std::string out;
    for (const DeviceShare& share : session.devices) {
        out += fmt::format("{}{}", out.empty() ? "" : ",", share.device);
    }
    return out.empty() ? "-" : out;
}

namespace {

std::string memory(std::uint64_t used_bytes, std::uint64_t total_bytes) {
    return fmt::format("{} / {}", format_bytes(used_bytes), format_bytes(total_bytes));
}

std::uint64_t session_total(const ServerStatus& status, const SessionStatus& session) {
    if (session.memory_quota_bytes != 0) {
        return session.memory_quota_bytes;
    }
    for (const auto& device : status.devices) {
        if (device.index == session.device) {
            return device.memory_total_bytes;
        }
    }
    return 0;
}

std::string without_transport(const std::string& peer) {
    return peer.starts_with("tcp ") ? peer.substr(4) : peer;
}

std::string line(const std::string& text) {
    return text.substr(0, text.find_last_not_of(' ') + 1) + "\n";
}

nlohmann::ordered_json or_null(const std::optional<int>& value) {
    return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
}

}  // namespace

std::string status_table(const ServerStatus& status) {
    std::string out;
    out += line(cut_text(
        fmt::format("Server  {}, gpupool {}, up {}", status.listen, status.version, age_text(status.uptime_seconds)),
        100));
    out += line(cut_text(fmt::format("Driver  {} ({}.{})", status.driver, status.driver_version / 1000,
                                     status.driver_version % 1000 / 10),
                         100));
    if (status.stock_wanted != 0) {
        out += line(fmt::format("Stock   {} of {} workers ready{}", status.stock_ready, status.stock_wanted,
                                status.stock_contexts ? ", with a context on a device" : ""));
    }
    out += line("");
    constexpr auto kDevice = "{:<6}  {:<24}  {:<21}  {:>9}  {:>5}  {:>5}  {:<9}  {:>5}";
    out += line(
        fmt::format(kDevice, "DEVICE", "NAME", "MEMORY USED / TOTAL", "PROMISED", "BUSY", "TEMP", "CLASS", "QUEUE"));
    for (const auto& device : status.devices) {
        out += line(fmt::format(kDevice, device.index, cut_text(device.name, 24),
                                cut_text(memory(device.memory_used_bytes, device.memory_total_bytes), 21),
                                format_bytes(device.memory_promised_bytes),
                                device.utilization_percent ? fmt::format("{}%", *device.utilization_percent) : "-",
                                device.temperature_celsius ? fmt::format("{} C", *device.temperature_celsius) : "-",
                                device.session_class.empty() ? "-" : device.session_class, device.waiting));
    }
    if (status.devices.empty()) {
        out += line("none: the driver found no device");
    }
    out += line("");
    constexpr auto kSession = "{:<16}  {:<12}  {:<5}  {:<21}  {:<14}  {:<14}  {:>6}";
    out += line(fmt::format(kSession, "SESSION", "TENANT", "GPUS", "MEMORY USED / TOTAL", "PEER", "PROCESS", "AGE"));
    for (const auto& session : status.sessions) {
        out += line(fmt::format(kSession, cut_text(session.id, 16), cut_text(session.tenant, 12),
                                cut_text(devices_text(session), 5),
                                cut_text(memory(session.memory_used_bytes, session_total(status, session)), 21),
                                cut_text(without_transport(session.peer), 14), cut_text(session.process_name, 14),
                                age_text(session.age_seconds)));
        if (session.session_class == "exclusive") {
            out += line("  exclusive");
        }
        if (const auto difference = session.memory_difference_bytes; difference != 0) {
            out += line(fmt::format("  NVML shows {} {} than is accounted for",
                                    format_bytes(static_cast<std::uint64_t>(std::abs(difference))),
                                    difference > 0 ? "more" : "less"));
        }
        if (!session.waits.empty()) {
            out += line(cut_text("  queued work waits: " + waits_text(session), 100));
        }
    }
    if (status.sessions.empty()) {
        out += line("none");
    }
    if (!status.queue.empty()) {
        out += line("");
        constexpr auto kQueue = "{:>5}  {:<14}  {:<14}  {:<12}  {:>6}  {}";
        out += line(fmt::format(kQueue, "QUEUE", "TENANT", "PEER", "PROCESS", "WAITED", "FOR"));
        for (const auto& waiting : status.queue) {
            out += line(
                cut_text(fmt::format(kQueue, waiting.position, cut_text(waiting.tenant, 14),
                                     cut_text(without_transport(waiting.peer), 14), cut_text(waiting.process_name, 12),
                                     age_text(waiting.waited_seconds), waiting.why),
                         100));
        }
    }
    return out;
}

std::string status_json(const ServerStatus& status) {
    nlohmann::ordered_json json;
    json["server"] = {{"address", status.listen},
                      {"version", status.version},
                      {"uptime_seconds", status.uptime_seconds},
                      {"driver", status.driver},
                      {"driver_version", status.driver_version}};
    json["stock"] = {
        {"wanted", status.stock_wanted}, {"ready", status.stock_ready}, {"contexts", status.stock_contexts}};
    json["devices"] = nlohmann::ordered_json::array();
    for (const auto& device : status.devices) {
        json["devices"].push_back({{"index", device.index},
                                   {"name", device.name},
                                   {"uuid", device.uuid},
                                   {"memory_used_bytes", device.memory_used_bytes},
                                   {"memory_total_bytes", device.memory_total_bytes},
                                   {"memory_promised_bytes", device.memory_promised_bytes},
                                   {"utilization_percent", or_null(device.utilization_percent)},
                                   {"temperature_celsius", or_null(device.temperature_celsius)},
                                   {"class", device.session_class},
                                   {"waiting", device.waiting}});
    }
    json["sessions"] = nlohmann::ordered_json::array();
    for (const auto& session : status.sessions) {
        json["sessions"].push_back({{"id", session.id},
                                    {"device", session.device},
                                    {"memory_used_bytes", session.memory_used_bytes},
                                    {"memory_quota_bytes", session.memory_quota_bytes},
                                    {"memory_difference_bytes", session.memory_difference_bytes},
                                    {"memory_total_bytes", session_total(status, session)},
                                    {"peer", session.peer},
                                    {"process_name", session.process_name},
                                    {"process_id", session.process_id},
                                    {"user_id", session.user_id},
                                    {"age_seconds", session.age_seconds},
                                    {"worker_process_id", session.worker_process_id},
                                    {"state", session.state},
                                    {"tenant", session.tenant},
                                    {"job", session.job},
                                    {"class", session.session_class},
                                    {"priority", session.priority},
                                    {"bytes_in", session.bytes_in},
                                    {"bytes_out", session.bytes_out},
                                    {"hostname", session.hostname}});
        auto& shares = json["sessions"].back()["devices"] = nlohmann::ordered_json::array();
        for (const DeviceShare& share : session.devices) {
            shares.push_back({{"device", share.device},
                              {"memory_used_bytes", share.memory_used_bytes},
                              {"memory_quota_bytes", share.memory_quota_bytes}});
        }
        auto& waits = json["sessions"].back()["waits"] = nlohmann::ordered_json::object();
        for (const auto& [reason, entries] : session.waits) {
            waits[reason] = entries;
        }
        if (!session.user_name.empty()) {
            json["sessions"].back()["user_name"] = session.user_name;
        }
    }
    json["queue"] = nlohmann::ordered_json::array();
    for (const auto& waiting : status.queue) {
        json["queue"].push_back({{"position", waiting.position},
                                 {"tenant", waiting.tenant},
                                 {"peer", waiting.peer},
                                 {"process_name", waiting.process_name},
                                 {"waited_seconds", waiting.waited_seconds},
                                 {"why", waiting.why}});
    }
    // A peer's text that is not UTF-8 must not make the whole status unreadable.
    return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace gpupool::cli
