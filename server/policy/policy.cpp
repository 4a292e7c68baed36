#include "server/policy/policy.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace gpupool::policy {
namespace {

std::string live_origin(const Scope& scope) {
    switch (scope.kind) {
        case Scope::Kind::tenant: return "set live for the tenant";
        case Scope::Kind::session: return "set live for the session";
        case Scope::Kind::everyone: break;
    }
    return "set live for all tenants";
}

}  // namespace

bool Policy::owns(std::string_view table) {
    constexpr std::array<std::string_view, 4> kTables = {"auth", "tenants", "tenant", "placement"};
    return std::find(kTables.begin(), kTables.end(), table) != kTables.end();
}

void Policy::Place::apply(const Place& other) {
    limits.apply(other.limits);
    for (const auto& [limit, origin] : other.origins) {
        origins[limit] = origin;
    }
}

bool Policy::changes_session(const std::string& session) const {
    return live_.contains({Scope::Kind::session, session});
}

Policy::Place Policy::live(const Scope& scope) const {
    const auto found = live_.find(scope);
    return found == live_.end() ? Place() : found->second;
}

Policy::Place Policy::combined(const std::string& tenant, const std::string& session) const {
    Place all = everyone_;
    all.apply(live({Scope::Kind::everyone, {}}));
    if (const auto of_file = tenants_.find(tenant); of_file != tenants_.end()) {
        all.apply(of_file->second);
    }
    all.apply(live({Scope::Kind::tenant, tenant}));
    if (!session.empty()) {
        all.apply(live({Scope::Kind::session, session}));
    }
    return all;
}

Policy Policy::with(const Overrides& overrides, std::vector<std::string>* unusable) const {
    Policy changed = *this;
    changed.live_.clear();
    for (const auto& [scope, texts] : overrides) {
        Place& place = changed.live_[scope];
        for (const auto& [key, text] : texts) {
            const LimitFacts* const facts = find_limit(key);
            const auto value = facts == nullptr ? Result<LimitValue>(Error{ErrorCode::invalid_input, "unknown"})
                                                : parse_limit(facts->limit, text);
            if (!value) {
                if (unusable != nullptr) {
                    unusable->push_back(
                        fmt::format("{}={} ({}): {}", key, text, live_origin(scope), value.error().message));
                }
                continue;
            }
            place.limits.set(facts->limit, *value);
            place.origins[facts->limit] = live_origin(scope);
        }
    }
    return changed;
}

Status Policy::check_devices(std::size_t count) const {
    const auto check = [count](const Place& place) -> Status {
        for (const Limit limit : {Limit::memory, Limit::default_memory}) {
            const auto& value = place.limits.get(limit);
            const auto beyond = value ? value->quotas.beyond(count) : std::nullopt;
            if (beyond) {
                return Error{ErrorCode::invalid_input,
                             fmt::format("{}: {}: there is no device {}: the server has {}", place.origins.at(limit),
                                         facts_of(limit).key, *beyond, count)};
            }
        }
        return {};
    };
    GPUPOOL_TRY(check(everyone_));
    for (const auto& [name, place] : tenants_) {
        GPUPOOL_TRY(check(place));
    }
    for (const auto& [scope, place] : live_) {
        GPUPOOL_TRY(check(place));
    }
    return {};
}

Effective Policy::limits(const std::string& tenant, const std::string& session) const {
    return effective(combined(tenant, session).limits);
}

std::vector<ShownLimit> Policy::show(const std::string& tenant, const std::string& session) const {
    const Place place = combined(tenant, session);
    const Effective all = effective(place.limits);
    std::vector<ShownLimit> shown;
    for (const LimitFacts& facts : all_limits()) {
        const auto& value = place.limits.get(facts.limit);
        LimitValue built_in;
        if (facts.limit == Limit::session_class) {
            built_in.number = static_cast<std::uint64_t>(all.session_class);
        } else if (facts.limit == Limit::priority) {
            built_in.number = all.priority;
        }
        shown.push_back({facts.limit, value.value_or(built_in), value ? place.origins.at(facts.limit) : "built in"});
    }
    return shown;
}

std::vector<std::string> Policy::tenants() const {
    std::vector<std::string> names;
    for (const auto& [name, place] : tenants_) {
        names.push_back(name);
    }
    return names;
}

Result<std::string> check_override(std::string_view key, std::string_view text) {
    const LimitFacts* const facts = find_limit(key);
    if (facts == nullptr) {
        std::string known;
        for (const LimitFacts& each : all_limits()) {
            known += fmt::format("{}{}", known.empty() ? "" : ", ", each.key);
        }
        return Error{ErrorCode::invalid_input, fmt::format("there is no limit {}; known are {}", key, known)};
    }
    const auto value = parse_limit(facts->limit, text);
    if (!value) {
        return value.error().within(key);
    }
    return format_limit(facts->limit, *value);
}

}  // namespace gpupool::policy
