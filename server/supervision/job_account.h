// The account of a job's device memory: the bytes that its sessions have taken of each device, held against one quota
// per device.
//
// An account is one page of shared memory. The daemon makes it for a job, gives each session a slot in it, and passes
// the page to the session's worker. A worker takes memory before it makes the driver's call, without a message to the
// daemon: so an account is exact, answers at once, and works while no daemon runs. A worker changes its own slot only,
// so whatever a killed worker was doing, clear() of its slot returns all that it had.
//
// Ownership: owns its mapping and its descriptor. The memory lives as long as one process has it.
// Threads: any, of any of the processes.
// Errors: take() returns false if the memory does not fit. A page that is not one is refused by adopt().
// Units: bytes. A slot never holds less than nothing, and never more than 2^64 - 1.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/result.h"
#include "common/unique_fd.h"

namespace gpupool::supervision {

struct AccountDevice {
    std::string uuid;                 // as probes write it
    std::uint64_t quota_bytes = 0;    // 0: no quota
    std::uint64_t context_bytes = 0;  // what a context takes, as far as it was measured
};

class JobAccount {
  public:
    static constexpr std::size_t kMaxDevices = 64;
    static constexpr std::size_t kMaxSessions = 256;

    // An account for at most kMaxDevices devices with nothing in it.
    static Result<JobAccount> make(const std::vector<AccountDevice>& devices);
    // The account behind a descriptor that another process gave.
    static Result<JobAccount> adopt(UniqueFd descriptor);
    JobAccount(JobAccount&& other) noexcept;
    JobAccount& operator=(JobAccount&& other) noexcept;
    ~JobAccount();

    [[nodiscard]] int descriptor() const { return descriptor_.get(); }
    [[nodiscard]] std::size_t device_count() const;
    [[nodiscard]] std::optional<std::size_t> find(std::string_view uuid) const;
    [[nodiscard]] std::uint64_t quota_bytes(std::size_t device) const;
    [[nodiscard]] std::uint64_t context_bytes(std::size_t device) const;
    // 0: no quota. If more is used than that, nothing fits until enough has been returned.
    void set_quota(std::size_t device, std::uint64_t bytes);

    // What one session has, and what all of them have.
    [[nodiscard]] std::uint64_t used_bytes(std::size_t slot, std::size_t device) const;
    [[nodiscard]] std::uint64_t used_bytes(std::size_t device) const;

    // True, and the slot has that much more, if the quota allows it.
    bool take(std::size_t slot, std::size_t device, std::uint64_t bytes);
    // Would take() succeed if no other session took anything?
    [[nodiscard]] bool fits(std::size_t device, std::uint64_t bytes) const;
    // Counts memory that is taken already, even beyond the quota. Nothing fits then until enough has been returned.
    void force(std::size_t slot, std::size_t device, std::uint64_t bytes);
    void give_back(std::size_t slot, std::size_t device, std::uint64_t bytes);
    // Returns all that the slot has. Its session must have ended.
    void clear(std::size_t slot);

  private:
    struct Page;
    JobAccount(UniqueFd descriptor, Page* page) : descriptor_(std::move(descriptor)), page_(page) {}
    void unmap();

    UniqueFd descriptor_;
    Page* page_ = nullptr;
};

}  // namespace gpupool::supervision
