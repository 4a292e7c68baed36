// The accounts of device memory, one for each job of a tenant.
//
// Every session belongs to a job: that of its request, or one of its own. All sessions of a job draw on the job's
// account, a page of shared memory (server/supervision/job_account.h). What is promised of each device, and to whom, is
// decided before (places.h).
//
// Ownership: a Place belongs to a session and ends with it, when the session's worker process has ended: then all that
//   the worker had taken is returned. The Accounts outlive their places.
// Threads: the loop's.
// Errors: Result; a message for the client's user.
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
        std::string uuid;
        std::uint64_t context_bytes = 0;  // of one context; 0: not measured
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
        [[nodiscard]] int descriptor() const;  // of the account's memory
        // Of a device, by the server's number; 0: no quota.
        [[nodiscard]] std::uint64_t quota_bytes(std::size_t device) const;
        void set_quota(std::size_t device, std::uint64_t bytes);
        void leave();

      private:
        friend class Accounts;
        Accounts* accounts_ = nullptr;
        std::shared_ptr<Job> job_;
        std::size_t slot_ = 0;
    };

    explicit Accounts(std::vector<Device> devices) : devices_(std::move(devices)) {}

    // `job`: unique among the tenants. `quotas_bytes`: of each device; 0: no quota. They count for the job's first
    // session.
    Result<Place> enter(const std::string& job, const std::vector<std::uint64_t>& quotas_bytes);
    // The place of a session that an earlier daemon admitted. `account` may be empty if another session brought it.
    Result<Place> adopt(const std::string& job, std::size_t slot, UniqueFd account);

  private:
    Place take_place(const std::shared_ptr<Job>& job, std::size_t slot);

    std::vector<Device> devices_;
    std::map<std::string, std::weak_ptr<Job>> jobs_;
};

}  // namespace gpupool::daemon
