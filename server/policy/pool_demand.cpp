// What a session asks for, within its tenant's limits.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "common/units.h"
#include "server/policy/pool.h"

namespace gpupool::policy {
namespace {

std::string gpus_text(std::uint64_t count) {
    return fmt::format("{} GPU{}", count, count == 1 ? "" : "s");
}

}  // namespace

// The largest quota that a job can be promised of a device: what an empty one has beside a context.
std::uint64_t Pool::largest_quota(std::size_t device) const {
    const Device& facts = devices_[device];
    const std::uint64_t beside = facts.context_bytes + facts.set_aside_bytes;
    const std::uint64_t left = facts.total_bytes - std::min(facts.total_bytes, beside);
    return std::max<std::uint64_t>(in_allocation_units(left), 1);
}

// Chooses how many GPUs, or which, the session gets. Returns why it cannot.
std::optional<std::string> Pool::choose_number(const Request& request, const Effective& limits, Demand& demand) const {
    const std::uint64_t most = std::min(limits.gpus, limits.total_gpus);
    const auto& asked = request.wishes.gpus;
    if (asked && *asked > devices_.size()) {
        return fmt::format("{} are asked for, and the server has {}", gpus_text(*asked), devices_.size());
    }
    if (asked && *asked > most) {
        return fmt::format("{} are asked for, and tenant {} may have {} at most ({})", gpus_text(*asked),
                           request.tenant, most, limits.gpus <= limits.total_gpus ? "gpus" : "total_gpus");
    }
    const std::uint64_t wanted = asked ? *asked : std::min(limits.default_gpus, most);
    demand.whole = asked || wanted < devices_.size();
    if (demand.whole) {
        demand.gpus = static_cast<std::size_t>(wanted);
    } else {
        demand.exact = seen_among(all_devices(), request.visible);
    }
    return std::nullopt;
}

// Chooses the quota of each device, and so which devices are large enough. Returns why none are.
std::optional<std::string> Pool::choose_memory(const Request& request, const Effective& limits, Demand& demand) const {
    const Wishes& wishes = request.wishes;
    if (const auto beyond = wishes.memory.beyond(devices_.size())) {
        return fmt::format("memory of device {} is asked for, and the server has {}", *beyond, devices_.size());
    }
    if (wishes.gpus && !wishes.memory.of_device.empty()) {
        return "memory is asked for by the server's numbers of devices, and a number of GPUs as well, which the "
               "server chooses: ask for one amount of each";
    }
    std::uint64_t least_asked = kNoLimit;
    for (std::size_t device = 0; device < devices_.size(); ++device) {
        const std::uint64_t asked = wishes.memory.bytes(device);
        const std::uint64_t most = limits.memory.bytes(device);
        const std::uint64_t otherwise = limits.default_memory.bytes(device);
        std::uint64_t quota = asked != 0 ? asked : otherwise != 0 ? otherwise : most;
        quota = most != 0 ? std::min(quota, most) : quota;
        const std::uint64_t given = quota == 0 ? 0 : std::min(in_allocation_units(quota), largest_quota(device));
        demand.quota_bytes.push_back(given);
        // A client that has asked for so much, and lets the server choose, gets devices that are large enough.
        const bool suits = asked == 0 || given >= in_allocation_units(quota);
        demand.suits.push_back(suits);
        least_asked = suits ? least_asked : std::min(least_asked, quota);
    }
    const auto suitable = static_cast<std::size_t>(std::count(demand.suits.begin(), demand.suits.end(), true));
    if (demand.whole && suitable < demand.gpus) {
        std::uint64_t largest = 0;
        for (std::size_t device = 0; device < devices_.size(); ++device) {
            largest = std::max(largest, largest_quota(device));
        }
        return fmt::format(
            "{} with {} each are asked for: {} of the server's {} are large enough, and the largest "
            "has {} beside a context",
            gpus_text(demand.gpus), format_bytes(least_asked), suitable, devices_.size(), format_bytes(largest));
    }
    return std::nullopt;
}

// Would it fit a server and a tenant without other sessions?
std::optional<std::string> Pool::check_possible(const Request& request, const Effective& limits, Demand& demand) const {
    if (limits.sessions == 0) {
        return fmt::format("tenant {} may have no sessions (sessions = 0)", request.tenant);
    }
    const std::size_t gpus = demand.whole ? demand.gpus : demand.exact.size();
    if (gpus > limits.total_gpus) {
        return fmt::format("{} are asked for, and the jobs of tenant {} may have {} in all (total_gpus)",
                           gpus_text(gpus), request.tenant, limits.total_gpus);
    }
    std::vector<std::uint64_t> charges;
    for (std::size_t device = 0; device < devices_.size(); ++device) {
        const bool counts = demand.whole
                                ? bool(demand.suits[device])
                                : std::find(demand.exact.begin(), demand.exact.end(), device) != demand.exact.end();
        if (counts) {
            charges.push_back(charge(device, demand.quota_bytes[device]));
        }
    }
    std::sort(charges.begin(), charges.end(), std::greater<>());
    charges.resize(std::min(charges.size(), gpus));
    demand.charge_bytes = std::accumulate(charges.begin(), charges.end(), std::uint64_t{0});
    if (demand.charge_bytes > limits.total_memory_bytes) {
        return fmt::format(
            "the session would be promised {} of device memory, and the jobs of tenant {} may have {} "
            "in all (total_memory): ask for less (GPUPOOL_MEMORY, GPUPOOL_GPUS)",
            format_bytes(demand.charge_bytes), request.tenant, format_bytes(limits.total_memory_bytes));
    }
    return std::nullopt;
}

std::variant<std::string, Pool::Demand> Pool::resolve(const Request& request) const {
    const Effective& limits = limits_of(request.tenant);
    const Wishes& wishes = request.wishes;
    Demand demand;
    demand.priority = std::min(wishes.priority.value_or(limits.priority), limits.priority);
    demand.session_class = wishes.session_class.value_or(SessionClass::shared);
    if (demand.session_class > limits.session_class) {
        return fmt::format("an exclusive GPU is asked for, and tenant {} may have only shared ones (class)",
                           request.tenant);
    }
    if (auto problem = choose_number(request, limits, demand)) {
        return std::move(*problem);
    }
    if (auto problem = choose_memory(request, limits, demand)) {
        return std::move(*problem);
    }
    if (auto problem = check_possible(request, limits, demand)) {
        return std::move(*problem);
    }
    return demand;
}

}  // namespace gpupool::policy
