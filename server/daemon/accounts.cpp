#include "server/daemon/accounts.h"

#include <fmt/format.h>

#include <utility>

namespace gpupool::daemon {

using supervision::JobAccount;

struct Accounts::Job {
    Job(std::string its_name, JobAccount its_account) : name(std::move(its_name)), account(std::move(its_account)) {}

    const std::string name;
    JobAccount account;
    std::set<std::size_t> slots;

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
    }
    return *this;
}

const std::string& Accounts::Place::job() const {
    return job_->name;
}

int Accounts::Place::descriptor() const {
    return job_->account.descriptor();
}

std::uint64_t Accounts::Place::quota_bytes(std::size_t device) const {
    return job_->account.quota_bytes(device);
}

void Accounts::Place::set_quota(std::size_t device, std::uint64_t bytes) {
    job_->account.set_quota(device, bytes);
}

void Accounts::Place::leave() {
    if (job_ == nullptr) {
        return;
    }
    job_->account.clear(slot_);
    job_->slots.erase(slot_);
    if (job_->slots.empty()) {
        accounts_->jobs_.erase(job_->name);
    }
    job_.reset();
}

Accounts::Place Accounts::take_place(const std::shared_ptr<Job>& job, std::size_t slot) {
    Place place;
    place.accounts_ = this;
    place.job_ = job;
    place.slot_ = slot;
    job->slots.insert(slot);
    jobs_[job->name] = job;
    return place;
}

Result<Accounts::Place> Accounts::enter(const std::string& name, const std::vector<std::uint64_t>& quotas_bytes) {
    const auto known = jobs_.find(name);
    std::shared_ptr<Job> job = known == jobs_.end() ? nullptr : known->second.lock();
    if (job == nullptr) {
        std::vector<supervision::AccountDevice> devices;
        for (const Device& device : devices_) {
            devices.push_back({device.uuid, quotas_bytes[devices.size()], device.context_bytes});
        }
        auto account = JobAccount::make(devices);
        if (!account) {
            return account.error().within("the server cannot make an account");
        }
        job = std::make_shared<Job>(name, std::move(*account));
    }
    const auto slot = job->free_slot();
    if (!slot) {
        return Error{ErrorCode::unavailable,
                     fmt::format("the job has {} sessions already, the most that may share one quota",
                                 JobAccount::kMaxSessions)};
    }
    job->account.clear(*slot);
    return take_place(job, *slot);
}

Result<Accounts::Place> Accounts::adopt(const std::string& name, std::size_t slot, UniqueFd memory) {
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
    return take_place(job, slot);
}

}  // namespace gpupool::daemon
