#include "server/policy/usage.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

namespace gpupool::policy {
namespace {

constexpr std::int64_t kDayMs = std::int64_t{24} * 3600 * 1000;

std::int64_t day_at(std::int64_t unix_ms) {
    return unix_ms >= 0 ? unix_ms / kDayMs : (unix_ms - kDayMs + 1) / kDayMs;
}

}  // namespace

UsageAmounts& UsageAmounts::operator+=(const UsageAmounts& other) {
    sessions += other.sessions;
    gpu_ms += other.gpu_ms;
    byte_seconds += other.byte_seconds;
    bytes_in += other.bytes_in;
    bytes_out += other.bytes_out;
    return *this;
}

std::string day_text(std::int64_t day) {
    const std::chrono::year_month_day date{std::chrono::sys_days(std::chrono::days(day))};
    return fmt::format("{:04}-{:02}-{:02}", static_cast<int>(date.year()), static_cast<unsigned>(date.month()),
                       static_cast<unsigned>(date.day()));
}

UsageAmounts UsageMeter::Holding::count(std::int64_t ms) {
    const auto time_ms = static_cast<std::uint64_t>(ms);
    UsageAmounts amounts;
    amounts.gpu_ms = gpus * time_ms;
    byte_ms_rest += memory_bytes * (time_ms % 1000);
    amounts.byte_seconds = memory_bytes * (time_ms / 1000) + byte_ms_rest / 1000;
    byte_ms_rest %= 1000;
    return amounts;
}

void UsageMeter::add(const std::string& tenant, std::int64_t unix_ms, const UsageAmounts& amounts) {
    rows_[{day_at(unix_ms), tenant}] += amounts;
    const bool has_its_own = totals_.contains(tenant) || totals_.size() < kMaxTotals;
    totals_[has_its_own ? tenant : kOtherTenants] += amounts;
}

// Counts what the tenant has held since the last time, and divides it at each midnight.
UsageMeter::Tenant& UsageMeter::count(const std::string& name, const Moment& now) {
    const auto [found, is_new] = tenants_.try_emplace(name);
    Tenant& tenant = found->second;
    if (is_new) {
        tenant.counted_to_ms = now.steady_ms;
    }
    std::int64_t left_ms = std::max<std::int64_t>(now.steady_ms - tenant.counted_to_ms, 0);
    tenant.counted_to_ms = std::max(tenant.counted_to_ms, now.steady_ms);
    std::int64_t from_ms = now.unix_ms - left_ms;
    while (left_ms > 0 && (tenant.gpus > 0 || tenant.memory_bytes > 0)) {
        const std::int64_t midnight_ms = (day_at(from_ms) + 1) * kDayMs;
        const std::int64_t part_ms = std::min(left_ms, midnight_ms - from_ms);
        add(name, from_ms, tenant.count(part_ms));
        from_ms += part_ms;
        left_ms -= part_ms;
    }
    return tenant;
}

void UsageMeter::count(Session& session, const Moment& now) {
    if (now.steady_ms > session.counted_to_ms) {
        session.total += session.Holding::count(now.steady_ms - session.counted_to_ms);
        session.counted_to_ms = now.steady_ms;
    }
}

void UsageMeter::forget_idle(const std::string& name) {
    const auto found = tenants_.find(name);
    if (found != tenants_.end() && found->second.gpus == 0 && found->second.sessions == 0) {
        tenants_.erase(found);
    }
}

void UsageMeter::start_session(const std::string& session, const std::string& tenant, const Moment& now,
                               std::size_t gpus) {
    adopt_session(session, tenant, 0, 0, now, gpus);
    add(tenant, now.unix_ms, {.sessions = 1});
}

void UsageMeter::adopt_session(const std::string& session, const std::string& tenant, std::uint64_t bytes_in,
                               std::uint64_t bytes_out, const Moment& now, std::size_t gpus) {
    ++count(tenant, now).sessions;
    add(tenant, now.unix_ms, {});
    Session& added = sessions_[session];
    added.tenant = tenant;
    added.gpus = gpus;
    added.bytes_in = bytes_in;
    added.bytes_out = bytes_out;
    added.counted_to_ms = now.steady_ms;
}

void UsageMeter::set_memory(const std::string& session, std::uint64_t bytes, const Moment& now) {
    const auto found = sessions_.find(session);
    if (found == sessions_.end() || found->second.memory_bytes == bytes) {
        return;
    }
    count(found->second, now);
    Tenant& tenant = count(found->second.tenant, now);
    tenant.memory_bytes += bytes;
    tenant.memory_bytes -= found->second.memory_bytes;
    found->second.memory_bytes = bytes;
}

void UsageMeter::set_copied(const std::string& session, std::uint64_t bytes_in, std::uint64_t bytes_out,
                            const Moment& now) {
    const auto found = sessions_.find(session);
    if (found == sessions_.end()) {
        return;
    }
    Session& counted = found->second;
    // A worker that reports less than before has not copied anything back.
    const std::uint64_t more_in = bytes_in - std::min(bytes_in, counted.bytes_in);
    const std::uint64_t more_out = bytes_out - std::min(bytes_out, counted.bytes_out);
    if (more_in == 0 && more_out == 0) {
        return;
    }
    const UsageAmounts more{.bytes_in = more_in, .bytes_out = more_out};
    add(counted.tenant, now.unix_ms, more);
    counted.total += more;
    counted.bytes_in += more_in;
    counted.bytes_out += more_out;
}

void UsageMeter::end_session(const std::string& session, const Moment& now) {
    const auto found = sessions_.find(session);
    if (found == sessions_.end()) {
        return;
    }
    set_memory(session, 0, now);
    const std::string tenant = found->second.tenant;
    --count(tenant, now).sessions;
    sessions_.erase(found);
    forget_idle(tenant);
}

void UsageMeter::set_gpus(const std::string& tenant, std::size_t gpus, const Moment& now) {
    count(tenant, now).gpus = gpus;
    forget_idle(tenant);
}

const std::map<std::string, UsageAmounts>& UsageMeter::totals(const Moment& now) {
    for (const auto& [name, tenant] : tenants_) {
        count(name, now);
    }
    return totals_;
}

UsageAmounts UsageMeter::of_session(const std::string& session, const Moment& now) {
    const auto found = sessions_.find(session);
    if (found == sessions_.end()) {
        return {};
    }
    count(found->second, now);
    return found->second.total;
}

std::vector<UsageRow> UsageMeter::take(const Moment& now) {
    std::vector<UsageRow> rows;
    for (const auto& [name, tenant] : tenants_) {
        count(name, now);
    }
    for (const auto& [key, amounts] : rows_) {
        if (amounts.any()) {
            rows.push_back({key.first, key.second, amounts});
        }
    }
    rows_.clear();
    return rows;
}

void UsageMeter::give_back(const std::vector<UsageRow>& rows) {
    for (const UsageRow& each : rows) {
        rows_[{each.day, each.tenant}] += each.amounts;
    }
}

}  // namespace gpupool::policy
