#include "server/daemon/accounts.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "common/units.h"
#include "common/visible_devices.h"

namespace gpupool::daemon {

using supervision::JobAccount;

namespace {

// The opposite of uuid_text(). Zeros for anything else.
DeviceUuid parse_uuid(const std::string& text) {
    DeviceUuid uuid{};
    std::string digits;
    std::copy_if(text.begin() + static_cast<std::ptrdiff_t>(std::min<std::size_t>(4, text.size())), text.end(),
                 std::back_inserter(digits), [](char c) { return c != '-'; });
    for (std::size_t i = 0; i < uuid.size() && 2 * i + 1 < digits.size(); ++i) {
        std::from_chars(digits.data() + 2 * i, digits.data() + 2 * i + 2, uuid[i], 16);
    }
    return uuid;
}

}  // namespace

struct Accounts::Job {
    Job(std::string its_name, JobAccount its_account)
        : name(std::move(its_name)), account(std::move(its_account)), sessions_seeing(account.device_count()) {}

    const std::string name;
    JobAccount account;
    std::set<std::size_t> slots;
    std::vector<std::size_t> sessions_seeing;  // by device

    [[nodiscard]] std::optional<std::size_t> free_slot() const {
        std::size_t slot = 0;
        while (slots.contains(slot)) {
            ++slot;
        }
        return slot < JobAccount::kMaxSessions ? std::optional(slot) : std::nullopt;
    }
};

Accounts::Place& Accounts::Place::operator=(Place&& other) noexcept {
    if (this != &other) {
        leave();
        accounts_ = other.accounts_;
        job_ = std::exchange(other.job_, nullptr);
        slot_ = other.slot_;
        devices_ = std::exchange(other.devices_, {});
    }
    return *this;
}

const std::string& Accounts::Place::job() const {
    return job_->name;
}

int Accounts::Place::descriptor() const {
    return job_->account.descriptor();
}

std::uint64_t Accounts::Place::quota_bytes() const {
    std::uint64_t most = 0;
    for (const std::size_t device : devices_) {
        most = std::max(most, job_->account.quota_bytes(device));
    }
    return most;
}

void Accounts::Place::leave() {
    if (job_ == nullptr) {
        return;
    }
    job_->account.clear(slot_);
    job_->slots.erase(slot_);
    for (const std::size_t device : devices_) {
        --job_->sessions_seeing[device];
    }
    if (job_->slots.empty()) {
        accounts_->jobs_.erase(job_->name);
    }
    job_.reset();
}

std::vector<std::size_t> Accounts::seen(const std::optional<std::string>& visible) const {
    std::vector<DeviceUuid> uuids;
    for (const Device& device : devices_) {
        uuids.push_back(parse_uuid(device.uuid));
    }
    std::vector<std::size_t> found;
    for (const int index : visible_devices(visible, uuids)) {
        found.push_back(static_cast<std::size_t>(index));
    }
    return found;
}

// A device whose memory is smaller than the quota has a smaller one: what remains beside a context.
std::vector<supervision::AccountDevice> Accounts::quotas(const std::vector<std::uint64_t>& asked_bytes) const {
    std::vector<supervision::AccountDevice> all;
    for (const Device& device : devices_) {
        const std::uint64_t asked = asked_bytes[all.size()];
        const std::uint64_t beside = device.context_bytes + device.set_aside_bytes;
        const std::uint64_t left = device.total_bytes - std::min(device.total_bytes, beside);
        const std::uint64_t most = std::max<std::uint64_t>(in_allocation_units(left), 1);
        all.push_back({device.uuid, std::min(in_allocation_units(asked), most), device.context_bytes});
    }
    return all;
}

std::uint64_t Accounts::promised_bytes(std::size_t device) const {
    std::uint64_t promised = devices_[device].set_aside_bytes;
    for (const auto& [name, weak] : jobs_) {
        const auto job = weak.lock();
        const std::size_t sessions = job == nullptr ? 0 : job->sessions_seeing[device];
        const std::uint64_t quota = sessions == 0 ? 0 : job->account.quota_bytes(device);
        promised += quota == 0 ? 0 : quota + sessions * devices_[device].context_bytes;
    }
    return promised;
}

// `job`: null for one that would have these quotas.
std::optional<Refusal> Accounts::check_room(const Job* job, const std::vector<std::uint64_t>& quotas_bytes,
                                            const std::vector<std::size_t>& devices) const {
    const auto all = quotas(quotas_bytes);
    for (const std::size_t index : devices) {
        const Device& device = devices_[index];
        const std::uint64_t quota = job == nullptr ? all[index].quota_bytes : job->account.quota_bytes(index);
        if (quota == 0) {
            continue;
        }
        const bool is_new = job == nullptr || job->sessions_seeing[index] == 0;
        const std::uint64_t wanted = device.context_bytes + (is_new ? quota : 0);
        const std::uint64_t promised = promised_bytes(index);
        if (promised > device.total_bytes || wanted > device.total_bytes - promised) {
            return Refusal{
                schema::Refused::Reason::CAPACITY,
                fmt::format("of the {} of device {} ({}) {} are promised to running sessions, and a session with a "
                            "quota of {} takes {} with its context: wait for one to end, or ask for less memory "
                            "(GPUPOOL_MEMORY)",
                            format_bytes(device.total_bytes), index, device.name, format_bytes(promised),
                            format_bytes(quota), format_bytes(wanted))};
        }
    }
    return std::nullopt;
}

Accounts::Place Accounts::take_place(const std::shared_ptr<Job>& job, std::size_t slot,
                                     std::vector<std::size_t> devices) {
    Place place;
    place.accounts_ = this;
    place.job_ = job;
    place.slot_ = slot;
    place.devices_ = std::move(devices);
    job->slots.insert(slot);
    for (const std::size_t device : place.devices_) {
        ++job->sessions_seeing[device];
    }
    jobs_[job->name] = job;
    return place;
}

std::variant<Accounts::Place, Refusal> Accounts::enter(const std::string& name,
                                                       const std::vector<std::uint64_t>& quotas_bytes,
                                                       const std::optional<std::string>& visible) {
    const auto known = jobs_.find(name);
    std::shared_ptr<Job> job = known == jobs_.end() ? nullptr : known->second.lock();
    std::vector<std::size_t> devices = seen(visible);
    if (auto refusal = check_room(job.get(), quotas_bytes, devices)) {
        return std::move(*refusal);
    }
    if (job == nullptr) {
        auto account = JobAccount::make(quotas(quotas_bytes));
        if (!account) {
            return Refusal{schema::Refused::Reason::INTERNAL,
                           fmt::format("the server cannot make an account: {}", account.error().message)};
        }
        job = std::make_shared<Job>(name, std::move(*account));
    }
    const auto slot = job->free_slot();
    if (!slot) {
        return Refusal{schema::Refused::Reason::CAPACITY,
                       fmt::format("the job has {} sessions already, the most that may share one quota",
                                   JobAccount::kMaxSessions)};
    }
    job->account.clear(*slot);
    return take_place(job, *slot, std::move(devices));
}

Result<Accounts::Place> Accounts::adopt(const std::string& name, std::size_t slot,
                                        const std::vector<std::string>& uuids, UniqueFd memory) {
    const auto known = jobs_.find(name);
    std::shared_ptr<Job> job = known == jobs_.end() ? nullptr : known->second.lock();
    if (job == nullptr) {
        auto account = JobAccount::adopt(std::move(memory));
        if (!account) {
            return account.error();
        }
        if (account->device_count() != devices_.size()) {
            return Error{ErrorCode::invalid_input, "its account is for other devices"};
        }
        job = std::make_shared<Job>(name, std::move(*account));
    }
    if (slot >= JobAccount::kMaxSessions || job->slots.contains(slot)) {
        return Error{ErrorCode::invalid_input, "its place in the account is taken or does not exist"};
    }
    std::vector<std::size_t> devices;
    for (const std::string& uuid : uuids) {
        if (const auto device = job->account.find(uuid)) {
            devices.push_back(*device);
        }
    }
    return take_place(job, slot, std::move(devices));
}

}  // namespace gpupool::daemon
