#include "client/cli/top_screen.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "client/cli/status_format.h"
#include "common/units.h"

namespace gpupool::cli {

namespace {

constexpr std::size_t kLeastHistory = 8;  // columns; a narrower screen has no history
constexpr std::size_t kMostHistory = 60;
constexpr std::size_t kMostBar = 60;
constexpr unsigned kHighPercent = 90;

// Columns that a text takes, if each of its characters takes one.
std::size_t width_of(std::string_view text) {
    return static_cast<std::size_t>(std::ranges::count_if(text, [](char c) { return (c & 0xC0) != 0x80; }));
}

std::string clipped(std::string text, std::size_t columns) {
    std::size_t width = 0;
    for (std::size_t i = 0; i < text.size(); ++i) {
        if ((text[i] & 0xC0) != 0x80 && ++width > columns) {
            text.resize(i);
            break;
        }
    }
    return text;
}

std::string padded(std::string text, std::size_t columns) {
    text.append(columns - std::min(columns, width_of(text)), ' ');
    return text;
}

class Lines {
  public:
    explicit Lines(const TopSize& size) : size_(size) {}
    void add(std::string text, TopStyle style = TopStyle::plain) {
        if (left() > 0) {
            lines_.push_back({clipped(std::move(text), size_.columns), style});
        }
    }
    [[nodiscard]] std::size_t left() const { return size_.rows - lines_.size(); }
    [[nodiscard]] std::vector<TopLine> take() { return std::move(lines_); }

  private:
    const TopSize size_;
    std::vector<TopLine> lines_;
};

void add_device(Lines& lines, const DeviceStatus& device, const TopSize& size) {
    const std::string head = fmt::format("GPU {:<2} ", device.index);
    const std::string figures =
        fmt::format(" {} / {}, promised {}, busy {}, {}{}", format_bytes(device.memory_used_bytes),
                    format_bytes(device.memory_total_bytes), format_bytes(device.memory_promised_bytes),
                    device.utilization_percent ? fmt::format("{}%", *device.utilization_percent) : "-",
                    device.temperature_celsius ? fmt::format("{} C", *device.temperature_celsius) : "- C",
                    device.session_class == "exclusive" ? ", exclusive" : "");
    const std::size_t taken = head.size() + figures.size();
    const std::size_t bar = taken + 12 <= size.columns ? std::min(size.columns - taken, kMostBar) : 0;
    const bool high = device.memory_total_bytes != 0 &&
                      device.memory_used_bytes / (device.memory_total_bytes / 100 + 1) >= kHighPercent;
    lines.add(head + top_bar(device.memory_used_bytes, device.memory_promised_bytes, device.memory_total_bytes, bar) +
                  figures,
              high ? TopStyle::high : TopStyle::plain);
}

constexpr auto kSessionColumns = "{:<10} {:<10} {:<5} {:>9} {:>9} {:>11} {:>6} {:<12} {:<12}";

std::string history_title(std::size_t columns) {
    return columns == 0 ? "" : " " + padded("MEMORY", columns) + " " + padded("COPIED", columns);
}

void add_session(Lines& lines, const TopModel::Session& session, std::size_t history, const TopSize& size) {
    const SessionStatus& now = session.now;
    std::string waits = waits_text(now);
    waits = waits.empty() ? now.state : waits;
    std::string text = fmt::format(kSessionColumns, cut_text(now.id, 10), cut_text(now.tenant, 10),
                                   cut_text(devices_text(now), 5), format_bytes(now.memory_used_bytes),
                                   now.memory_quota_bytes == 0 ? "-" : format_bytes(now.memory_quota_bytes),
                                   format_bytes(session.copied_now()) + "/s", age_text(now.age_seconds),
                                   cut_text(now.process_name, 12), cut_text(waits, 12));
    if (history != 0) {
        text += " " + sparkline(session.memory_bytes, history, size.unicode) + " " +
                sparkline(session.copied_per_second, history, size.unicode);
    }
    lines.add(std::move(text), now.state == "disconnected" || now.state == "ending" ? TopStyle::high : TopStyle::plain);
}

void add_sessions(Lines& lines, const TopModel& model, const TopSize& size, std::size_t below) {
    const std::string title = fmt::format(kSessionColumns, "SESSION", "TENANT", "GPUS", "MEMORY", "QUOTA", "COPIED",
                                          "AGE", "PROCESS", "STATE");
    const std::size_t free = size.columns - std::min(size.columns, title.size() + 2);
    const std::size_t history = free / 2 < kLeastHistory ? 0 : std::min(free / 2, kMostHistory);
    lines.add(title + history_title(history), TopStyle::heading);
    const auto sessions = model.sessions();
    if (sessions.empty()) {
        lines.add("none");
    }
    for (std::size_t i = std::min(size.scroll, sessions.size()); i < sessions.size() && lines.left() > below; ++i) {
        add_session(lines, *sessions[i], history, size);
    }
}

void add_queue(Lines& lines, const std::vector<const WaitingRequest*>& queue) {
    if (queue.empty()) {
        return;
    }
    lines.add(fmt::format("QUEUE  {} waiting", queue.size()), TopStyle::heading);
    for (const WaitingRequest* waiting : queue) {
        lines.add(fmt::format("{:>5}  {:<10} {:<12} {:>6}  {}", waiting->position, cut_text(waiting->tenant, 10),
                              cut_text(waiting->process_name, 12), age_text(waiting->waited_seconds), waiting->why));
    }
}

}  // namespace

std::string top_bar(std::uint64_t used, std::uint64_t promised, std::uint64_t total, std::size_t columns) {
    if (columns < 3) {
        return "";
    }
    const std::size_t cells = columns - 2;
    const auto share = [&](std::uint64_t bytes) {
        const double part = total == 0 ? 0 : static_cast<double>(std::min(bytes, total)) / static_cast<double>(total);
        return static_cast<std::size_t>(part * static_cast<double>(cells) + 0.5);
    };
    const std::size_t full = share(used);
    const std::size_t kept = std::max(share(promised), full) - full;
    return "[" + std::string(full, '#') + std::string(kept, '+') + std::string(cells - full - kept, '.') + "]";
}

std::string sparkline(const std::deque<std::uint64_t>& values, std::size_t columns, bool unicode) {
    static constexpr std::array<const char*, 8> kBlocks{"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    static constexpr std::array<const char*, 8> kLetters{"_", ".", "-", "=", "+", "*", "#", "@"};
    const std::size_t count = std::min(columns, values.size());
    const auto first = values.end() - static_cast<std::ptrdiff_t>(count);
    const std::uint64_t most = count == 0 ? 0 : *std::max_element(first, values.end());
    std::string line(columns - count, ' ');
    for (auto value = first; value != values.end(); ++value) {
        const double part = most == 0 ? 0 : static_cast<double>(*value) / static_cast<double>(most);
        const auto height = static_cast<std::size_t>(part * static_cast<double>(kBlocks.size() - 1) + 0.5);
        line += (unicode ? kBlocks : kLetters).at(height);
    }
    return line;
}

std::vector<TopLine> top_screen(const TopModel& model, const TopSize& size, TopModel::TimePoint now) {
    Lines lines(size);
    const ServerStatus& status = model.status();
    lines.add(fmt::format("gpupool {}  {}, up {}  sessions {}  sort {}{}  tenant {}", status.version, status.listen,
                          age_text(status.uptime_seconds), status.sessions.size(), name_of(model.sort()),
                          model.reversed() ? " (reversed)" : "", model.tenant().empty() ? "all" : model.tenant()),
              TopStyle::heading);
    if (model.lost()) {
        lines.add(fmt::format("No answer for {} s, trying again: {}", model.lost_seconds(now), *model.lost()),
                  TopStyle::alarm);
    }
    for (const DeviceStatus& device : status.devices) {
        add_device(lines, device, size);
    }
    lines.add("");
    // The queue gets up to a third of the lines that are left, and the keys the last line.
    const auto queue = model.queue();
    const std::size_t of_queue = queue.empty() ? 0 : std::min(queue.size() + 1, lines.left() / 3);
    const bool keys = lines.left() > 4;
    add_sessions(lines, model, size, of_queue + (keys ? 1 : 0));
    Lines rest({lines.left() - (keys && lines.left() > 0 ? 1 : 0), size.columns, size.unicode, 0});
    add_queue(rest, queue);
    for (TopLine& line : rest.take()) {
        lines.add(std::move(line.text), line.style);
    }
    if (keys) {
        while (lines.left() > 1) {
            lines.add("");
        }
        lines.add("q quit  s sort  r reverse  t tenant  up, down scroll", TopStyle::heading);
    }
    return lines.take();
}

}  // namespace gpupool::cli
