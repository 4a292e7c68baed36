#include "server/policy/audit.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "common/printable.h"

namespace gpupool::policy {
namespace {

constexpr std::size_t kMaxReasonBytes = 2048;
constexpr std::size_t kMaxDetails = 32;

std::string_view event_name(AuditEvent event) {
    switch (event) {
        case AuditEvent::admitted: return "admitted";
        case AuditEvent::refused: return "refused";
        case AuditEvent::ended: return "ended";
        case AuditEvent::changed: break;
    }
    return "changed";
}

// "2026-11-30T14:03:07.250Z"
std::string time_text(std::int64_t unix_ms) {
    const std::chrono::sys_time<std::chrono::milliseconds> time{std::chrono::milliseconds(unix_ms)};
    const auto day = std::chrono::floor<std::chrono::days>(time);
    const std::chrono::year_month_day date(day);
    const std::chrono::hh_mm_ss clock(time - day);
    return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z", static_cast<int>(date.year()),
                       static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()), clock.hours().count(),
                       clock.minutes().count(), clock.seconds().count(), clock.subseconds().count());
}

}  // namespace

std::string audit_line(const AuditRecord& record) {
    nlohmann::ordered_json json;
    json["time"] = time_text(record.unix_ms);
    json["event"] = event_name(record.event);
    json["by"] = printable(record.by);
    const auto add = [&json](const char* key, const std::string& text, std::size_t most_bytes) {
        if (!text.empty()) {
            json[key] = printable(text, most_bytes);
        }
    };
    constexpr std::size_t kMaxNameBytes = 256;
    add("tenant", record.tenant, kMaxNameBytes);
    add("session", record.session, kMaxNameBytes);
    add("job", record.job, kMaxNameBytes);
    add("peer", record.peer, kMaxNameBytes);
    add("reason", record.reason, kMaxReasonBytes);
    std::size_t count = 0;
    for (const auto& [key, text] : record.details) {
        if (++count > kMaxDetails) {
            break;
        }
        json["details"][printable(key, 64)] = printable(text);
    }
    return json.dump() + "\n";
}

Result<AuditLog> AuditLog::open(const std::string& path, Size size) {
    AuditLog log(path, size, UniqueFd(), 0);
    GPUPOOL_TRY(log.open_file());
    return log;
}

Status AuditLog::open_file() {
    file_.reset(::open(path_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    struct stat facts {};
    if (!file_ || ::fstat(file_.get(), &facts) != 0) {
        return system_error("cannot open the audit log " + path_, errno);
    }
    if (!S_ISREG(facts.st_mode)) {
        file_.reset();
        return Error{ErrorCode::invalid_input, "the audit log " + path_ + " is not a file"};
    }
    bytes_ = static_cast<std::uint64_t>(facts.st_size);
    return {};
}

Status AuditLog::rotate() {
    const auto older = [this](std::size_t number) { return number == 0 ? path_ : fmt::format("{}.{}", path_, number); };
    if (size_.kept == 0) {
        ::unlink(path_.c_str());
    }
    for (std::size_t number = size_.kept; number > 0; --number) {
        if (::rename(older(number - 1).c_str(), older(number).c_str()) != 0 && errno != ENOENT) {
            return system_error("cannot rename " + older(number - 1), errno);
        }
    }
    return open_file();
}

Status AuditLog::write(const AuditRecord& record) {
    const std::string line = audit_line(record);
    if (!file_) {
        GPUPOOL_TRY(open_file());  // an earlier attempt failed
    }
    if (bytes_ > 0 && bytes_ + line.size() > size_.most_bytes) {
        GPUPOOL_TRY(rotate());
    }
    const ssize_t written = ::write(file_.get(), line.data(), line.size());
    if (written < 0) {
        return system_error("cannot write to " + path_, errno);
    }
    bytes_ += static_cast<std::uint64_t>(written);
    return written == static_cast<ssize_t>(line.size())
               ? Status()
               : Status(Error{ErrorCode::system, "cannot write to " + path_ + ": the disk may be full"});
}

}  // namespace gpupool::policy
