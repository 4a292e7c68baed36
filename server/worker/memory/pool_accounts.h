// Counts the driver's memory pools against the session's quota: all memory that a pool holds, because a pool may keep
// what the program has freed.
//
// The driver implements the pools that the program creates, and serves stream-ordered allocations while such a pool is
// a device's current one. The client implements the devices' default pools (client/core/memory/stream_pool.h). A pool
// reports what it holds. It returns memory when it is trimmed and at synchronizations, so it is queried again when
// something does not fit. Without a quota pools are not queried, and only what the program has allocated counts.
//
// Threads: the dispatcher's alone.
// Errors: CUDA_ERROR_OUT_OF_MEMORY if the quota is used up, else the driver's.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <utility>

#include "protocol/calls/cuda_api.h"
#include "server/driver/api.h"

namespace gpupool::worker {

class MemoryAccount;

class PoolAccounts {
  public:
    // `account` outlives this.
    explicit PoolAccounts(MemoryAccount& account) : account_(account) {}

    // `notice` lets the driver notice that frees are complete, which it does when it is asked to synchronize. False if
    // some are not complete.
    void set_notice(std::function<bool()> notice) { notice_ = std::move(notice); }

    // The program has created a pool of that device's memory.
    void made(CUmemoryPool pool, CUdevice device);
    // Allocates from a pool of the program's, or the default pool of a device. The memory is that of the pool's device,
    // whichever device's stream asks for it.
    // `allocate` makes the driver call; `free` undoes it if the pool has grown beyond the quota.
    CUresult allocate(const driver::Api& api, CUmemoryPool pool, std::uint64_t bytes,
                      const std::function<CUresult(CUdeviceptr&)>& allocate,
                      const std::function<void(CUdeviceptr)>& free, CUdeviceptr& address);
    struct Allocation {
        CUmemoryPool pool;
        std::uint64_t bytes;
    };
    // The allocation at the address has been freed.
    void freed(CUdeviceptr address);
    // The same in two steps, around a free during which the driver may give the address to another allocation: the
    // first takes the allocation from its address, if there is one; the second says whether it was freed.
    std::optional<Allocation> take(CUdeviceptr address);
    void end_free(CUdeviceptr address, const Allocation& allocation, bool freed);
    // A helper destroys the pool: it is not queried any more. end_destroy() reports the outcome: destroyed (`ended`),
    // when only allocations that are not freed still count, or not.
    void begin_destroy(CUmemoryPool pool);
    void end_destroy(CUmemoryPool pool, bool ended);
    // Queries the pools again, and releases from the account the memory that they do not hold any more. True if there
    // was any.
    bool recount(const driver::Api& api);

    [[nodiscard]] std::size_t allocations() const { return allocations_.size(); }

  private:
    struct Pool {
        CUdevice device = 0;
        std::uint64_t used_bytes = 0;     // by the program
        std::uint64_t charged_bytes = 0;  // at least used_bytes
        bool asked = true;                // may be queried: not while it is being destroyed
        bool ended = false;
    };

    std::map<CUmemoryPool, Pool>::iterator find_or_learn(const driver::Api& api, CUmemoryPool pool);
    std::uint64_t held_bytes(const driver::Api& api, CUmemoryPool pool, CUdevice device) const;
    bool charge_up_to(Pool& pool, std::uint64_t bytes);
    bool lower_to(Pool& pool, std::uint64_t bytes);
    void drop_if_unused(std::map<CUmemoryPool, Pool>::iterator pool);

    MemoryAccount& account_;
    std::function<bool()> notice_;
    bool unnoticed_frees_ = false;
    std::map<CUmemoryPool, Pool> pools_;  // by the driver's handles
    std::map<CUdeviceptr, Allocation> allocations_;
};

}  // namespace gpupool::worker
