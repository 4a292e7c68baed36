#include "server/policy/pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "common/units.h"

namespace gpupool::policy {

Pool::Pool(std::vector<Device> devices, std::shared_ptr<const Policy> policy)
    : devices_(std::move(devices)),
      policy_(std::move(policy)),
      used_(devices_.size()),
      jobs_on_(devices_.size()),
      exclusive_(devices_.size()) {
    for (const Device& device : devices_) {
        promised_.push_back(device.set_aside_bytes);
    }
}

bool Pool::Job::holds(std::size_t device) const {
    return sessions_seeing[device] > 0 ||
           (whole && sessions > 0 && std::find(devices.begin(), devices.end(), device) != devices.end());
}

const Effective& Pool::limits_of(const std::string& tenant) const {
    constexpr std::size_t kMostKept = 1000;
    if (limits_.size() >= kMostKept && !limits_.contains(tenant)) {
        limits_.clear();
    }
    const auto [found, is_new] = limits_.try_emplace(tenant);
    if (is_new) {
        found->second = policy_->limits(tenant);
    }
    return found->second;
}

// What may be promised of a device.
std::uint64_t Pool::capacity(std::size_t device) const {
    return static_cast<std::uint64_t>(static_cast<double>(devices_[device].total_bytes) * policy_->rules().overcommit);
}

// The memory that a job's device counts against its tenant's total_memory.
std::uint64_t Pool::charge(std::size_t device, std::uint64_t quota_bytes) const {
    return quota_bytes == 0 ? devices_[device].total_bytes : quota_bytes;
}

// What a job with one session is promised of a device.
std::uint64_t Pool::need(std::size_t device, std::uint64_t quota_bytes) const {
    return quota_bytes == 0 ? 0 : quota_bytes + devices_[device].context_bytes;
}

std::vector<std::size_t> Pool::seen_among(const std::vector<std::size_t>& devices,
                                          const std::optional<std::string>& visible) const {
    std::vector<DeviceUuid> uuids;
    for (const std::size_t device : devices) {
        uuids.push_back(devices_[device].uuid);
    }
    std::vector<std::size_t> seen;
    for (const int index : visible_devices(visible, uuids)) {
        seen.push_back(devices[static_cast<std::size_t>(index)]);
    }
    return seen;
}

std::vector<std::size_t> Pool::all_devices() const {
    std::vector<std::size_t> all(devices_.size());
    for (std::size_t i = 0; i < all.size(); ++i) {
        all[i] = i;
    }
    return all;
}

TenantUse Pool::use_of(const std::string& tenant) const {
    const auto found = uses_.find(tenant);
    return found == uses_.end() ? TenantUse() : found->second;
}

const Grant* Pool::find(const std::string& session) const {
    const auto found = sessions_.find(session);
    return found == sessions_.end() ? nullptr : &found->second.grant;
}

std::shared_ptr<Pool::Job> Pool::job_of(const Request& request) const {
    const auto found = jobs_.find(request.job);
    return found == jobs_.end() ? nullptr : found->second;
}

// Judging.

// Whether a new job with this demand has room on the device.
bool Pool::fits(std::size_t device, const Demand& demand) const {
    if (is_exclusive(device) || (demand.session_class == SessionClass::exclusive && jobs_on_[device] > 0)) {
        return false;
    }
    return has_room(device, need(device, demand.quota_bytes[device]));
}

bool Pool::has_room(std::size_t device, std::uint64_t bytes) const {
    const std::uint64_t most = capacity(device);
    return bytes == 0 || (promised_[device] <= most && bytes <= most - promised_[device]);
}

// As many devices as wanted that have room and are not reserved, by the operator's rule; fewer if there are not enough.
std::vector<std::size_t> Pool::choose(const Demand& demand, const Marks& reserved) const {
    std::vector<std::size_t> with_room;
    for (std::size_t device = 0; device < devices_.size(); ++device) {
        if (demand.suits[device] && !reserved[device] && fits(device, demand)) {
            with_room.push_back(device);
        }
    }
    const bool pack = policy_->rules().placement == Placement::pack;
    const auto free_bytes = [this](std::size_t device) {
        const std::uint64_t gone = std::max(promised_[device], used_[device]);
        return devices_[device].total_bytes - std::min(devices_[device].total_bytes, gone);
    };
    std::stable_sort(with_room.begin(), with_room.end(), [&](std::size_t one, std::size_t other) {
        const auto left = std::tuple(free_bytes(other), jobs_on_[one]),
                   right = std::tuple(free_bytes(one), jobs_on_[other]);
        return pack ? left > right : left < right;
    });
    with_room.resize(std::min(with_room.size(), demand.gpus));
    std::sort(with_room.begin(), with_room.end());
    return with_room;
}

// The devices that a session without room reserves: those that lack least of what it needs, by what only ends of
// other sessions can change. At equal terms it keeps what it has reserved.
std::vector<std::size_t> Pool::lacking_least(const Entry& entry, const Demand& demand, const Marks& reserved) const {
    if (!demand.whole) {
        return demand.exact;
    }
    const auto lack = [&](std::size_t device) {
        const std::uint64_t wanted = promised_[device] + need(device, demand.quota_bytes[device]);
        const std::uint64_t missing = demand.quota_bytes[device] == 0 ? 0 : wanted - std::min(wanted, capacity(device));
        const std::size_t jobs =
            demand.session_class == SessionClass::exclusive || is_exclusive(device) ? jobs_on_[device] : 0;
        const bool is_new = std::find(entry.reserved.begin(), entry.reserved.end(), device) == entry.reserved.end();
        return std::tuple(jobs, missing, is_new, device);
    };
    std::vector<std::size_t> best;
    for (std::size_t device = 0; device < devices_.size(); ++device) {
        if (demand.suits[device] && !reserved[device]) {
            best.push_back(device);
        }
    }
    std::sort(best.begin(), best.end(), [&](std::size_t one, std::size_t other) { return lack(one) < lack(other); });
    best.resize(std::min(best.size(), demand.gpus));
    return best;
}

Pool::Verdict Pool::judge_first(const Entry& entry, const Demand& demand, const Marks& reserved) const {
    const Effective& limits = limits_of(entry.request.tenant);
    const TenantUse use = use_of(entry.request.tenant);
    const std::size_t gpus = demand.whole ? demand.gpus : demand.exact.size();
    const auto within = [](std::uint64_t used, std::uint64_t more, std::uint64_t most) {
        return used <= most && more <= most - used;
    };
    if (!within(use.sessions, 1, limits.sessions) || !within(use.gpus, gpus, limits.total_gpus) ||
        (limits.total_memory_bytes != kNoLimit &&
         !within(use.memory_bytes, demand.charge_bytes, limits.total_memory_bytes))) {
        return {Obstacle::tenant, {}};
    }
    if (demand.whole) {
        auto chosen = choose(demand, reserved);
        if (chosen.size() == demand.gpus) {
            return {Obstacle::none, std::move(chosen)};
        }
    } else if (std::all_of(demand.exact.begin(), demand.exact.end(),
                           [&](std::size_t device) { return !reserved[device] && fits(device, demand); })) {
        return {Obstacle::none, all_devices()};
    }
    return {Obstacle::room, lacking_least(entry, demand, reserved)};
}

Pool::Verdict Pool::judge_further(const Entry& entry, const Job& job) const {
    const Effective& limits = limits_of(entry.request.tenant);
    const TenantUse use = use_of(entry.request.tenant);
    if (job.sessions >= kMaxJobSessions) {
        return {Obstacle::job, {}};
    }
    std::size_t more_gpus = 0;
    std::uint64_t more_bytes = 0;
    const std::vector<std::size_t> seen = seen_among(job.devices, entry.request.visible);
    bool room = true;
    for (const std::size_t device : seen) {
        const std::uint64_t quota = job.quota_bytes[device];
        std::uint64_t bytes = quota == 0 ? 0 : devices_[device].context_bytes;
        if (!job.holds(device)) {
            bytes += quota;
            ++more_gpus;
            more_bytes += charge(device, quota);
            room =
                room && !is_exclusive(device) && (job.session_class == SessionClass::shared || jobs_on_[device] == 0);
        }
        room = room &&
               (bytes == 0 || (promised_[device] <= capacity(device) && bytes <= capacity(device) - promised_[device]));
    }
    if (use.sessions >= limits.sessions ||
        (more_gpus > 0 && limits.total_gpus != kNoLimit && use.gpus + more_gpus > limits.total_gpus) ||
        (more_gpus > 0 && limits.total_memory_bytes != kNoLimit &&
         use.memory_bytes + more_bytes > limits.total_memory_bytes)) {
        return {Obstacle::tenant, {}};
    }
    return room ? Verdict{Obstacle::none, job.devices} : Verdict{Obstacle::room, seen};
}

Pool::Verdict Pool::judge(const Entry& entry, const Marks& reserved) const {
    if (const auto job = job_of(entry.request)) {
        return judge_further(entry, *job);
    }
    const auto* demand = std::get_if<Demand>(&entry.demand);
    return demand == nullptr ? Verdict{Obstacle::impossible, {}} : judge_first(entry, *demand, reserved);
}

void Pool::examine(const Visit& visit) {
    const auto rank = [this](const Entry& entry) {
        const auto* demand = std::get_if<Demand>(&entry.demand);
        const bool further = job_of(entry.request) != nullptr;
        const std::uint64_t priority = further || demand == nullptr ? kMaxPriority : demand->priority;
        return std::tuple(!further, kMaxPriority - priority, entry.number);
    };
    queue_.sort([&](const Entry& one, const Entry& other) { return rank(one) < rank(other); });
    Marks reserved(devices_.size());
    std::set<std::string> held_tenants, waiting_jobs;
    const bool full = sessions_.size() >= policy_->rules().sessions;
    for (auto entry = queue_.begin(); entry != queue_.end(); ++entry) {
        const bool further = job_of(entry->request) != nullptr;
        Verdict verdict = judge(*entry, reserved);
        if (verdict.obstacle != Obstacle::impossible) {
            if (full) {
                verdict = {Obstacle::server, {}};
            } else if (!further && held_tenants.contains(entry->request.tenant)) {
                verdict = {Obstacle::tenant, {}};
            } else if (!further && !waiting_jobs.insert(entry->request.job).second) {
                verdict = {Obstacle::job, {}};
            }
        }
        if (!visit(entry, verdict, reserved)) {
            return;
        }
        if (verdict.obstacle == Obstacle::tenant) {
            held_tenants.insert(entry->request.tenant);
        }
        for (const std::size_t device : verdict.devices) {
            reserved[device] = true;
        }
    }
}

// Changing.

void Pool::take_device(Job& job, std::size_t device) {
    const std::uint64_t quota = job.quota_bytes[device];
    promised_[device] += quota;
    ++jobs_on_[device];
    exclusive_[device] += job.session_class == SessionClass::exclusive ? 1 : 0;
    TenantUse& use = uses_[job.tenant];
    ++use.gpus;
    use.memory_bytes += charge(device, quota);
}

void Pool::give_back_device(Job& job, std::size_t device) {
    const std::uint64_t quota = job.quota_bytes[device];
    promised_[device] -= quota;
    --jobs_on_[device];
    exclusive_[device] -= job.session_class == SessionClass::exclusive ? 1 : 0;
    TenantUse& use = uses_[job.tenant];
    --use.gpus;
    use.memory_bytes -= charge(device, quota);
}

void Pool::enter(const std::shared_ptr<Job>& job, Grant grant) {
    const auto for_new_devices = [&](auto&& change) {
        std::vector<bool> held;
        for (std::size_t device = 0; device < devices_.size(); ++device) {
            held.push_back(job->holds(device));
        }
        change();
        for (std::size_t device = 0; device < devices_.size(); ++device) {
            if (!held[device] && job->holds(device)) {
                take_device(*job, device);
            }
        }
    };
    for_new_devices([&] {
        ++job->sessions;
        for (const std::size_t device : grant.seen) {
            ++job->sessions_seeing[device];
        }
    });
    for (const std::size_t device : grant.seen) {
        promised_[device] += job->quota_bytes[device] == 0 ? 0 : devices_[device].context_bytes;
    }
    ++uses_[job->tenant].sessions;
    jobs_[job->name] = job;
    const std::string id = grant.session;
    sessions_[id] = Session{std::move(grant), job};
}

void Pool::leave(const Session& session) {
    Job& job = *session.job;
    std::vector<bool> held;
    for (std::size_t device = 0; device < devices_.size(); ++device) {
        held.push_back(job.holds(device));
    }
    --job.sessions;
    for (const std::size_t device : session.grant.seen) {
        --job.sessions_seeing[device];
        promised_[device] -= job.quota_bytes[device] == 0 ? 0 : devices_[device].context_bytes;
    }
    for (std::size_t device = 0; device < devices_.size(); ++device) {
        if (held[device] && !job.holds(device)) {
            give_back_device(job, device);
        }
    }
    const auto use = uses_.find(job.tenant);
    --use->second.sessions;
    if (use->second == TenantUse()) {
        uses_.erase(use);
    }
    if (job.sessions == 0) {
        jobs_.erase(job.name);
    }
}

void Pool::admit(const Entry& entry, const std::vector<std::size_t>& devices) {
    auto job = job_of(entry.request);
    if (job == nullptr) {
        const Demand& demand = std::get<Demand>(entry.demand);
        job = std::make_shared<Job>();
        job->name = entry.request.job;
        job->tenant = entry.request.tenant;
        job->devices = devices;
        job->quota_bytes = demand.quota_bytes;
        job->sessions_seeing.resize(devices_.size());
        job->session_class = demand.session_class;
        job->priority = demand.priority;
        job->whole = demand.whole;
    }
    Grant grant{entry.request.session, job->tenant,   job->name, job->devices, {}, {},
                job->session_class,    job->priority, job->whole};
    for (const std::size_t device : job->devices) {
        grant.memory_bytes.push_back(job->quota_bytes[device]);
    }
    grant.seen = seen_among(job->devices, entry.request.visible);
    decisions_.emplace_back(grant);
    enter(job, std::move(grant));
}

void Pool::refuse(std::list<Entry>::iterator entry, std::string message, bool later) {
    decisions_.emplace_back(Refusal{entry->request.session, std::move(message), later});
    queue_.erase(entry);
}

void Pool::admit_waiting() {
    for (bool changed = !queue_.empty(); changed;) {
        changed = false;
        examine([&](std::list<Entry>::iterator entry, const Verdict& verdict, const Marks&) {
            if (verdict.obstacle == Obstacle::impossible) {
                std::string message = std::get<std::string>(entry->demand);
                refuse(entry, std::move(message), false);
                changed = true;
            } else if (verdict.obstacle == Obstacle::none) {
                admit(*entry, verdict.devices);
                queue_.erase(entry);
                changed = true;
            } else {
                entry->reserved = verdict.devices;
            }
            return !changed;
        });
    }
}

// Tells each session that waits its position, if it has changed.
void Pool::tell_positions() {
    std::size_t position = 0;
    bool changed = false;
    for (const Entry& entry : queue_) {
        changed = changed || entry.told_position != ++position;
    }
    if (!changed) {
        return;
    }
    position = 0;
    examine([&](std::list<Entry>::iterator entry, const Verdict& verdict, const Marks& reserved) {
        if (entry->told_position != ++position) {
            entry->told_position = position;
            decisions_.emplace_back(
                Waiting{entry->request.session, position, queue_.size(), explain(*entry, verdict, reserved)});
        }
        return true;
    });
}

std::vector<Waiting> Pool::queue() {
    std::vector<Waiting> all;
    examine([&](std::list<Entry>::iterator entry, const Verdict& verdict, const Marks& reserved) {
        all.push_back({entry->request.session, all.size() + 1, queue_.size(), explain(*entry, verdict, reserved)});
        return true;
    });
    return all;
}

std::string Pool::why(const Entry& entry) {
    std::string text;
    examine([&](std::list<Entry>::iterator each, const Verdict& verdict, const Marks& reserved) {
        if (&*each != &entry) {
            return true;
        }
        text = explain(entry, verdict, reserved);
        return false;
    });
    return text;
}

void Pool::request(Request request, std::int64_t now_ms) {
    if (request.job.empty()) {
        request.job = request.tenant + "/session " + request.session;  // no name that a client can choose
    }
    const Rules& rules = policy_->rules();
    const std::string id = request.session;
    Entry entry;
    entry.demand = resolve(request);
    entry.number = ++arrivals_;
    entry.deadline_ms = now_ms + std::min(request.wishes.wait, rules.queue_time).count();
    entry.request = std::move(request);
    queue_.push_back(std::move(entry));
    admit_waiting();
    const auto waits =
        std::find_if(queue_.begin(), queue_.end(), [&id](const Entry& each) { return each.request.session == id; });
    if (waits != queue_.end() && waits->deadline_ms <= now_ms) {
        refuse(waits, why(*waits), true);
        admit_waiting();  // it may have reserved what others can use
    } else if (waits != queue_.end() && queue_.size() > rules.queue_length) {
        refuse(waits, fmt::format("{} sessions wait already, the most that may: {}", queue_.size() - 1, why(*waits)),
               true);
        admit_waiting();
    }
    tell_positions();
}

void Pool::end(const std::string& session) {
    const auto running = sessions_.find(session);
    if (running != sessions_.end()) {
        leave(running->second);
        sessions_.erase(running);
    } else {
        queue_.remove_if([&session](const Entry& entry) { return entry.request.session == session; });
    }
    admit_waiting();
    tell_positions();
}

void Pool::advance(std::int64_t now_ms) {
    bool any = false;
    for (auto entry = queue_.begin(); entry != queue_.end();) {
        const auto next = std::next(entry);
        if (entry->deadline_ms <= now_ms) {
            any = true;
            // why() sorts the list, which moves no entry that is needed here
            std::string text = "the time to wait for room is over: " + why(*entry);
            refuse(entry, std::move(text), true);
            entry = queue_.begin();
        } else {
            entry = next;
        }
    }
    if (any) {
        admit_waiting();
        tell_positions();
    }
}

std::optional<std::int64_t> Pool::next_deadline_ms() const {
    std::optional<std::int64_t> next;
    for (const Entry& entry : queue_) {
        next = std::min(next.value_or(entry.deadline_ms), entry.deadline_ms);
    }
    return next;
}

void Pool::set_policy(std::shared_ptr<const Policy> policy) {
    policy_ = std::move(policy);
    limits_.clear();
    for (Entry& entry : queue_) {
        entry.demand = resolve(entry.request);
    }
    admit_waiting();
    tell_positions();
}

void Pool::set_aside(std::size_t device, std::uint64_t bytes) {
    promised_[device] += bytes;
    promised_[device] -= devices_[device].set_aside_bytes;
    devices_[device].set_aside_bytes = bytes;
    admit_waiting();
    tell_positions();
}

void Pool::adopt(Grant grant) {
    auto known = jobs_.find(grant.job);
    std::shared_ptr<Job> job = known == jobs_.end() ? nullptr : known->second;
    const auto exists = [this](std::size_t device) { return device < devices_.size(); };
    if (job == nullptr) {
        job = std::make_shared<Job>();
        job->name = grant.job;
        job->tenant = grant.tenant;
        job->quota_bytes.resize(devices_.size());
        job->sessions_seeing.resize(devices_.size());
        for (std::size_t i = 0; i < grant.devices.size(); ++i) {
            if (exists(grant.devices[i])) {
                job->devices.push_back(grant.devices[i]);
                job->quota_bytes[grant.devices[i]] = i < grant.memory_bytes.size() ? grant.memory_bytes[i] : 0;
            }
        }
        job->session_class = grant.session_class;
        job->priority = grant.priority;
        job->whole = grant.whole;
    }
    std::erase_if(grant.seen, [&](std::size_t device) { return !exists(device); });
    if (sessions_.contains(grant.session)) {
        return;
    }
    enter(job, std::move(grant));
    admit_waiting();
    tell_positions();
}

Status Pool::change_memory(const std::string& session, const Quotas& memory) {
    const auto running = sessions_.find(session);
    if (running == sessions_.end()) {
        return Error{ErrorCode::invalid_input, fmt::format("there is no session {}", session)};
    }
    Job& job = *running->second.job;
    std::vector<std::uint64_t> wanted = job.quota_bytes;
    const std::uint64_t most_in_all = limits_of(job.tenant).total_memory_bytes;
    std::uint64_t charged = use_of(job.tenant).memory_bytes, charged_before = charged;
    for (const std::size_t device : job.devices) {
        const std::uint64_t asked = memory.bytes(device);
        wanted[device] = asked == 0 ? 0 : std::min(in_allocation_units(asked), largest_quota(device));
        if (!job.holds(device)) {
            continue;
        }
        const std::uint64_t contexts = job.sessions_seeing[device] * devices_[device].context_bytes;
        const auto promise = [&](std::uint64_t quota) { return quota == 0 ? 0 : quota + contexts; };
        const std::uint64_t now = promise(job.quota_bytes[device]), then = promise(wanted[device]);
        if (then > now && promised_[device] - now + then > capacity(device)) {
            return Error{ErrorCode::limit_exceeded,
                         fmt::format("of the {} of device {} ({}) {} are promised to others: there is no room for a "
                                     "quota of {}",
                                     format_bytes(capacity(device)), device, devices_[device].name,
                                     format_bytes(promised_[device] - now), format_bytes(wanted[device]))};
        }
        charged += charge(device, wanted[device]);
        charged -= charge(device, job.quota_bytes[device]);
    }
    if (charged > charged_before && charged > most_in_all) {
        return Error{ErrorCode::limit_exceeded,
                     fmt::format("the jobs of tenant {} would be promised {} in all, more than its total_memory of {}",
                                 job.tenant, format_bytes(charged), format_bytes(most_in_all))};
    }
    for (const std::size_t device : job.devices) {
        if (job.holds(device)) {
            const std::uint64_t contexts = job.sessions_seeing[device] * devices_[device].context_bytes;
            promised_[device] -= job.quota_bytes[device] == 0 ? 0 : job.quota_bytes[device] + contexts;
            promised_[device] += wanted[device] == 0 ? 0 : wanted[device] + contexts;
        }
    }
    uses_[job.tenant].memory_bytes = charged;
    job.quota_bytes = wanted;
    for (auto& [id, each] : sessions_) {
        if (each.job.get() == &job) {
            for (std::size_t i = 0; i < each.grant.devices.size(); ++i) {
                each.grant.memory_bytes[i] = wanted[each.grant.devices[i]];
            }
        }
    }
    admit_waiting();
    tell_positions();
    return {};
}

std::vector<Decision> Pool::take() {
    return std::exchange(decisions_, {});
}

}  // namespace gpupool::policy
