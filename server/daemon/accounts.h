// The accounts of device memory, one for each job of a tenant, and what the daemon has promised of each device.
//
// Every session belongs to a job: that of its request, or one of its own. All sessions of a job draw on the job's
// account (server/supervision/job_account.h). A job with a quota is promised that much of each device that one of its
// sessions sees, and each of its sessions the memory of a context beside it. A session enters only if all promises
// together fit the device, so that a program can always allocate its quota. Jobs without a quota are promised nothing.
//
// Ownership: a Place belongs to a session and ends with it, when the session's worker process has ended: then all that
//   the worker had taken is returned. The Accounts outlive their places.
// Threads: the loop's.
// Errors: a Refusal says what did not fit, for the client's user.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "common/unique_fd.h"
#include "server/daemon/admission.h"
#include "server/supervision/job_account.h"

namespace gpupool::daemon {

class Accounts {
  public:
    struct Device {
        std::string name, uuid;
        std::uint64_t total_bytes = 0;
        std::uint64_t context_bytes = 0;    // of one context; 0: not measured
        std::uint64_t set_aside_bytes = 0;  // for workers in stock
    };
    struct Job;

    class Place {
      public:
        Place() = default;
        Place(Place&& other) noexcept { *this = std::move(other); }
        Place& operator=(Place&& other) noexcept;
        ~Place() { leave(); }

        [[nodiscard]] bool taken() const { return job_ != nullptr; }
        [[nodiscard]] const std::string& job() const;
        [[nodiscard]] std::size_t slot() const { return slot_; }
        [[nodiscard]] int descriptor() const;             // of the account's memory
        [[nodiscard]] std::uint64_t quota_bytes() const;  // the largest of the devices'; 0: no quota
        void leave();

      private:
        friend class Accounts;
        Accounts* accounts_ = nullptr;
        std::shared_ptr<Job> job_;
        std::size_t slot_ = 0;
        std::vector<std::size_t> devices_;  // that the session sees
    };

    explicit Accounts(std::vector<Device> devices) : devices_(std::move(devices)) {}

    // `job`: unique among the tenants. `quotas_bytes`: of each device; 0: no quota. They count for the job's first
    // session. `visible`: the value of CUDA_VISIBLE_DEVICES in the session, if it sets one.
    std::variant<Place, Refusal> enter(const std::string& job, const std::vector<std::uint64_t>& quotas_bytes,
                                       const std::optional<std::string>& visible);
    // The place of a session that an earlier daemon admitted. `account` may be empty if another session brought it.
    Result<Place> adopt(const std::string& job, std::size_t slot, const std::vector<std::string>& uuids,
                        UniqueFd account);

    // All that is promised of a device.
    [[nodiscard]] std::uint64_t promised_bytes(std::size_t device) const;

  private:
    [[nodiscard]] std::vector<std::size_t> seen(const std::optional<std::string>& visible) const;
    [[nodiscard]] std::vector<supervision::AccountDevice> quotas(const std::vector<std::uint64_t>& asked_bytes) const;
    std::optional<Refusal> check_room(const Job* job, const std::vector<std::uint64_t>& quotas_bytes,
                                      const std::vector<std::size_t>& devices) const;
    Place take_place(const std::shared_ptr<Job>& job, std::size_t slot, std::vector<std::size_t> devices);

    std::vector<Device> devices_;
    std::map<std::string, std::weak_ptr<Job>> jobs_;
};

}  // namespace gpupool::daemon
