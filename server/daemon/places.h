// The places for sessions: which requests get one, which wait for one, and which are refused. server/policy/pool.h
// decides; this connects it with the loop's clock, the accounts of device memory, and the visitors who wait.
//
// Ownership: a granted Place belongs to its session and ends with it, when the worker's process has ended. The Places
//   outlive them.
// Threads: the loop's.
// Errors: a Refusal says what did not fit, for the client's user.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "server/daemon/accounts.h"
#include "server/daemon/loop.h"
#include "server/daemon/reception.h"
#include "server/daemon/worker_process.h"
#include "server/policy/pool.h"

namespace gpupool::daemon {

// In the name of a session's own job, behind the tenant's name: no name that a client can choose.
inline constexpr std::string_view kOwnJob = "/session ";

class Places {
  public:
    // `changed`: a request that waits has been decided, or has another position.
    Places(Loop& loop, const DriverFacts& driver, std::shared_ptr<const policy::Policy> policy,
           std::function<void()> changed);

    class Place {
      public:
        Place() = default;
        Place(Place&& other) noexcept { *this = std::move(other); }
        Place& operator=(Place&& other) noexcept;
        ~Place() { leave(); }

        [[nodiscard]] bool taken() const { return places_ != nullptr; }
        [[nodiscard]] const std::string& job() const { return account_.job(); }
        [[nodiscard]] std::size_t slot() const { return account_.slot(); }
        [[nodiscard]] int descriptor() const { return account_.descriptor(); }  // of the account's memory
        [[nodiscard]] const policy::Grant& grant() const { return grant_; }
        // Of a device, by the server's number; 0: no quota.
        [[nodiscard]] std::uint64_t quota_bytes(std::size_t device) const { return account_.quota_bytes(device); }
        [[nodiscard]] std::uint64_t largest_quota_bytes() const;
        // In the queue, before it was granted.
        [[nodiscard]] milliseconds waited() const { return waited_; }
        // Gives the session's job another quota of each device, by the server's numbers. Fails, and changes nothing,
        // if there is no room for more.
        Status change_memory(const Quotas& memory);
        // The value of CUDA_VISIBLE_DEVICES for the session; nullopt: its program's own.
        [[nodiscard]] const std::optional<std::string>& visible_devices() const { return visible_devices_; }

      private:
        friend class Places;
        void leave();

        Places* places_ = nullptr;
        Accounts::Place account_;
        policy::Grant grant_;
        milliseconds waited_{0};
        std::optional<std::string> visible_devices_;
    };

    using Decision = std::variant<Place, Queued, Refusal>;
    // `visible`: the value of CUDA_VISIBLE_DEVICES in the session, if its program sets one. A request that is Queued is
    // asked for again after `changed`, and over with withdraw().
    Decision ask(const Admission& admission, RequestId request, const std::optional<std::string>& visible);
    void withdraw(RequestId request);

    // The place of a session that an earlier daemon admitted. `account` may be empty if another session brought it.
    Result<Place> adopt(policy::Grant grant, std::size_t slot, UniqueFd account);

    void set_policy(std::shared_ptr<const policy::Policy> policy);
    // How many workers in stock have a context, by device.
    void set_stock(const std::vector<std::size_t>& contexts);

    [[nodiscard]] const policy::Pool& pool() const { return pool_; }
    // The requests that wait, in the queue's order.
    struct Waiter {
        policy::Waiting waiting;
        RequestId request = 0;
    };
    [[nodiscard]] std::vector<Waiter> waiters();

  private:
    struct Pending {
        std::string name;  // in the pool
        Loop::TimePoint since;
        std::optional<policy::Decision> decision;
    };

    Decision take_decision(RequestId request, bool& over);
    Place enter(policy::Grant grant, Accounts::Place account);
    [[nodiscard]] std::vector<std::uint64_t> quotas(const policy::Grant& grant) const;
    // Keeps what the pool has decided, and says that there is something new.
    void collect(bool tell);
    void advance();
    [[nodiscard]] std::int64_t now_ms() const;

    Loop& loop_;
    const std::vector<ProbedDevice>& devices_;
    const std::function<void()> changed_;
    Accounts accounts_;
    policy::Pool pool_;
    std::map<RequestId, Pending> pending_;
    std::uint64_t last_name_ = 0;
    Timer deadline_;
};

}  // namespace gpupool::daemon
