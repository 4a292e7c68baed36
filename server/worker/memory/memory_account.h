// What the session has allocated on each device: its part of its job's account (server/supervision/job_account.h).
//
// Ownership: owns its mapping of the account.
// Threads: any.
// Errors: none; what does not fit is refused, and the log says so once.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "protocol/calls/cuda_api.h"
#include "server/supervision/job_account.h"

namespace gpupool::worker {

// Slabs are multiples of this: the driver's granularity.
inline constexpr std::uint64_t kLeastSlabBytes = 2u << 20;

class MemoryAccount {
  public:
    // An account that no other session shares, with the same quota for each device (0: none).
    MemoryAccount(std::size_t devices, std::uint64_t quota_bytes);
    // The session's slot in its job's account. `devices`: the account's number of each of the session's devices.
    MemoryAccount(supervision::JobAccount account, std::size_t slot, std::vector<std::size_t> devices);

    [[nodiscard]] std::size_t device_count() const { return devices_.size(); }
    [[nodiscard]] std::uint64_t quota_bytes(CUdevice device) const;    // 0: no quota
    [[nodiscard]] std::uint64_t context_bytes(CUdevice device) const;  // of one context, as far as it was measured
    [[nodiscard]] std::uint64_t used_bytes(CUdevice device) const;     // by this session
    [[nodiscard]] std::uint64_t free_bytes(CUdevice device) const;     // of the quota, whichever session used the rest
    [[nodiscard]] std::vector<std::uint64_t> used() const;             // by device

    [[nodiscard]] bool fits(CUdevice device, std::uint64_t bytes) const;
    bool charge(CUdevice device, std::uint64_t bytes);
    // Counts memory that is already allocated, even beyond the quota. Nothing fits then until enough has been released.
    void force(CUdevice device, std::uint64_t bytes);
    void release(CUdevice device, std::uint64_t bytes);

    // Grows with each change of this session's use.
    [[nodiscard]] std::uint64_t changes() const { return changes_; }

  private:
    [[nodiscard]] bool has(CUdevice device) const {
        return device >= 0 && static_cast<std::size_t>(device) < devices_.size();
    }
    [[nodiscard]] std::size_t index_of(CUdevice device) const { return devices_[static_cast<std::size_t>(device)]; }

    std::optional<supervision::JobAccount> account_;
    std::size_t slot_ = 0;
    std::vector<std::size_t> devices_;
    std::uint64_t changes_ = 0;
    std::atomic<bool> logged_{false};  // the first allocation that did not fit
};

}  // namespace gpupool::worker
