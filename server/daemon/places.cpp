#include "server/daemon/places.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "common/visible_devices.h"
#include "server/daemon/session.h"

namespace gpupool::daemon {

namespace {

std::vector<Accounts::Device> account_devices(const DriverFacts& driver) {
    std::vector<Accounts::Device> devices;
    for (const ProbedDevice& device : driver.devices) {
        devices.push_back({device.uuid, device.context_bytes});
    }
    return devices;
}

std::vector<policy::Device> pool_devices(const DriverFacts& driver) {
    std::vector<policy::Device> devices;
    for (const ProbedDevice& device : driver.devices) {
        devices.push_back({device.name, parse_uuid(device.uuid), device.memory_total_bytes, device.context_bytes, 0});
    }
    return devices;
}

Queued queued(const policy::Waiting& waiting) {
    return {waiting.position, waiting.length, waiting.why};
}

Refusal refusal(const policy::Refusal& refused) {
    return {refused.later ? schema::Refused::Reason::CAPACITY : schema::Refused::Reason::LIMITS, refused.message};
}

const std::string& session_of(const policy::Decision& decision) {
    return std::visit([](const auto& of) -> const std::string& { return of.session; }, decision);
}

}  // namespace

Places::Places(Loop& loop, const DriverFacts& driver, std::shared_ptr<const policy::Policy> policy,
               std::function<void()> changed)
    : loop_(loop),
      devices_(driver.devices),
      changed_(std::move(changed)),
      accounts_(account_devices(driver)),
      pool_(pool_devices(driver), std::move(policy)),
      deadline_(loop, [this] { advance(); }) {}

Places::Place& Places::Place::operator=(Place&& other) noexcept {
    if (this != &other) {
        leave();
        places_ = std::exchange(other.places_, nullptr);
        account_ = std::move(other.account_);
        grant_ = std::move(other.grant_);
        waited_ = other.waited_;
        visible_devices_ = std::move(other.visible_devices_);
    }
    return *this;
}

std::uint64_t Places::Place::largest_quota_bytes() const {
    std::uint64_t most = 0;
    for (const std::size_t device : grant_.seen) {
        most = std::max(most, quota_bytes(device));
    }
    return most;
}

Status Places::Place::change_memory(const Quotas& memory) {
    policy::Pool& pool = places_->pool_;
    GPUPOOL_TRY(pool.change_memory(grant_.session, memory));
    grant_.memory_bytes = pool.find(grant_.session)->memory_bytes;
    for (std::size_t i = 0; i < grant_.devices.size(); ++i) {
        account_.set_quota(grant_.devices[i], grant_.memory_bytes[i]);
    }
    places_->collect(true);  // less may have made room
    return {};
}

void Places::Place::leave() {
    if (places_ == nullptr) {
        return;
    }
    account_ = {};
    Places& places = *std::exchange(places_, nullptr);
    places.pool_.end(grant_.session);
    places.collect(true);
}

std::int64_t Places::now_ms() const {
    return std::chrono::duration_cast<std::chrono::milliseconds>(loop_.now().time_since_epoch()).count();
}

Places::Decision Places::ask(const Admission& admission, RequestId request, const std::optional<std::string>& visible) {
    const auto [pending, is_new] = pending_.try_emplace(request);
    if (is_new) {
        std::string job = admission.job;
        if (job.empty()) {
            const auto own = make_session_id();
            if (!own) {
                pending_.erase(pending);
                return Refusal{schema::Refused::Reason::INTERNAL, own.error().message};
            }
            job = fmt::format("{}{}{}", admission.identity.name, kOwnJob, *own);
        }
        pending->second.since = loop_.now();
        pending->second.name = fmt::format("request {}", ++last_name_);
        policy::Request asked;
        asked.session = pending->second.name;
        asked.tenant = admission.identity.name;
        asked.job = std::move(job);
        asked.wishes = {admission.wishes.gpus, admission.memory, admission.wishes.session_class,
                        admission.wishes.priority, admission.wishes.wait};
        asked.visible = visible;
        pool_.request(std::move(asked), now_ms());
        collect(false);
    }
    bool over = true;
    Decision decision = take_decision(request, over);
    if (over) {
        pending_.erase(request);
    }
    return decision;
}

Places::Decision Places::take_decision(RequestId request, bool& over) {
    Pending& pending = pending_.at(request);
    if (!pending.decision) {
        return Refusal{schema::Refused::Reason::INTERNAL, "the server has not decided: please report this"};
    }
    if (const auto* waiting = std::get_if<policy::Waiting>(&*pending.decision)) {
        over = false;
        return queued(*waiting);
    }
    if (const auto* refused = std::get_if<policy::Refusal>(&*pending.decision)) {
        return refusal(*refused);
    }
    policy::Grant grant = std::get<policy::Grant>(std::move(*pending.decision));
    auto account = accounts_.enter(grant.job, quotas(grant));
    if (!account) {
        pool_.end(grant.session);
        collect(true);
        return Refusal{schema::Refused::Reason::CAPACITY, account.error().message};
    }
    Place place = enter(std::move(grant), std::move(*account));
    place.waited_ = std::chrono::duration_cast<milliseconds>(loop_.now() - pending.since);
    return place;
}

std::vector<std::uint64_t> Places::quotas(const policy::Grant& grant) const {
    std::vector<std::uint64_t> bytes(devices_.size());
    for (std::size_t i = 0; i < grant.devices.size(); ++i) {
        bytes[grant.devices[i]] = grant.memory_bytes[i];
    }
    return bytes;
}

Places::Place Places::enter(policy::Grant grant, Accounts::Place account) {
    Place place;
    place.places_ = this;
    place.account_ = std::move(account);
    if (grant.devices.size() < devices_.size()) {
        std::vector<std::string> uuids;
        for (const std::size_t device : grant.seen) {
            uuids.push_back(devices_[device].uuid);
        }
        place.visible_devices_ = fmt::format("{}", fmt::join(uuids, ","));
    }
    place.grant_ = std::move(grant);
    return place;
}

void Places::withdraw(RequestId request) {
    const auto found = pending_.find(request);
    if (found == pending_.end()) {
        return;
    }
    pool_.end(found->second.name);
    pending_.erase(found);
    collect(true);
}

Result<Places::Place> Places::adopt(policy::Grant grant, std::size_t slot, UniqueFd account) {
    auto place = accounts_.adopt(grant.job, slot, std::move(account));
    if (!place) {
        return place.error();
    }
    for (const std::size_t device : grant.devices) {
        grant.memory_bytes.push_back(place->quota_bytes(device));
    }
    grant.session = fmt::format("adopted {}", ++last_name_);
    pool_.adopt(grant);
    collect(true);
    return enter(std::move(grant), std::move(*place));
}

void Places::set_policy(std::shared_ptr<const policy::Policy> policy) {
    pool_.set_policy(std::move(policy));
    collect(true);
}

void Places::set_stock(const std::vector<std::size_t>& contexts) {
    for (std::size_t device = 0; device < contexts.size(); ++device) {
        const std::uint64_t bytes = contexts[device] * devices_[device].context_bytes;
        if (bytes != pool_.set_aside_bytes(device)) {
            pool_.set_aside(device, bytes);
        }
    }
    collect(true);
}

void Places::collect(bool tell) {
    const auto decisions = pool_.take();
    for (const policy::Decision& decision : decisions) {
        const auto found = std::find_if(pending_.begin(), pending_.end(),
                                        [&](const auto& entry) { return entry.second.name == session_of(decision); });
        if (found != pending_.end()) {
            found->second.decision = decision;
        }
    }
    if (const auto next = pool_.next_deadline_ms()) {
        deadline_.set(Loop::TimePoint(std::chrono::milliseconds(*next)));
    } else {
        deadline_.cancel();
    }
    if (!decisions.empty() && (tell || decisions.size() > 1)) {
        changed_();
    }
}

void Places::advance() {
    pool_.advance(now_ms());
    collect(true);
}

std::vector<Places::Waiter> Places::waiters() {
    std::vector<Waiter> waiters;
    for (policy::Waiting& waiting : pool_.queue()) {
        const auto found = std::find_if(pending_.begin(), pending_.end(),
                                        [&](const auto& entry) { return entry.second.name == waiting.session; });
        waiters.push_back({std::move(waiting), found == pending_.end() ? 0 : found->first});
    }
    return waiters;
}

}  // namespace gpupool::daemon
