// What the driver's memory pools take of the session's quota: all that they hold, not only what the program has of
// them, since a pool may keep what was freed.
//
// Pools of the program's making are the driver's, and so is what it allocates in stream order while one of them is a
// device's current one; the devices' default pools are the client's own (client/core/memory/stream_pool.h). A pool
// tells what it holds; it gives memory back when it is trimmed, and at synchronizations, so it is asked again when
// something does not fit. Without a quota it is not asked: what the program has of it is all that counts.
//
// Threads: the dispatcher's alone. Errors: CUDA_ERROR_OUT_OF_MEMORY where the quota is used up, else the driver's.
#pragma once

#include <cstdint>
#include <functional>
#include <map>

#include "protocol/calls/cuda_api.h"
#include "server/driver/api.h"

namespace gpupool::worker {

struct MemoryAccount;

class PoolAccounts {
  public:
    // `account` outlives this.
    explicit PoolAccounts(MemoryAccount& account) : account_(account) {}

    // The program has made one, of that device's memory.
    void made(CUmemoryPool pool, CUdevice device);
    // Of a pool that nobody made, a device's default one, `device` is whose. `allocate` gives the address; `free` takes
    // it back where the pool has grown beyond the quota.
    CUresult allocate(const driver::Api& api, CUmemoryPool pool, CUdevice device, std::uint64_t bytes,
                      const std::function<CUresult(CUdeviceptr&)>& allocate,
                      const std::function<void(CUdeviceptr)>& free, CUdeviceptr& address);
    // What was allocated at the address has been freed. False where nothing was.
    bool freed(CUdeviceptr address);
    // It is being destroyed, elsewhere: it is not asked any more. Then it has been (`ended`), and holds what has not
    // been freed yet; or not.
    void begin_to_end(CUmemoryPool pool);
    void end(CUmemoryPool pool, bool ended);
    // Gives what the pools do not hold any more back to the account. True when that was anything.
    bool settle(const driver::Api& api);

    [[nodiscard]] std::size_t allocations() const { return allocations_.size(); }

  private:
    struct Pool {
        CUdevice device = 0;
        std::uint64_t used_bytes = 0;     // by the program
        std::uint64_t charged_bytes = 0;  // at least that
        bool asked = true;                // what it holds: not while it is being destroyed
        bool ended = false;
    };
    struct Allocation {
        CUmemoryPool pool;
        std::uint64_t bytes;
    };

    std::uint64_t held_bytes(const driver::Api& api, CUmemoryPool pool) const;
    bool charge_up_to(Pool& pool, std::uint64_t bytes);
    bool lower_to(Pool& pool, std::uint64_t bytes);
    void drop_if_unused(std::map<CUmemoryPool, Pool>::iterator pool);

    MemoryAccount& account_;
    std::map<CUmemoryPool, Pool> pools_;  // by the driver's handles
    std::map<CUdeviceptr, Allocation> allocations_;
};

}  // namespace gpupool::worker
