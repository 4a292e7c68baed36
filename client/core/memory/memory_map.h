// What lies where: device memory and pinned host memory by address.
//
// Threads: any. Ownership: values; look-ups return copies.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory_resource>
#include <optional>
#include <vector>

#include "common/mutex.h"
#include "protocol/calls/cuda_api.h"

namespace gpupool::client {

struct ContextState;

enum class MemoryKind {
    device,     // cuMemAlloc and its like, at an address of ours
    pool,       // stream-ordered
    global,     // a module's variable, at an address of the driver's
    mapped,     // cuMemMap, within a reservation
    pinned,     // cuMemHostAlloc, cuMemAllocHost
    registered  // cuMemHostRegister
};

struct MemoryRange {
    std::uint64_t base = 0, bytes = 0;
    MemoryKind kind = MemoryKind::device;
    CUdevice device = 0;
    ContextState* context = nullptr;
    unsigned flags = 0;
    std::uint64_t id = 0;  // CU_POINTER_ATTRIBUTE_BUFFER_ID
    bool sync_memops = false;
    CUmemoryPool pool = nullptr;  // of stream-ordered memory; null: the device's current one

    [[nodiscard]] bool on_device() const { return kind != MemoryKind::pinned && kind != MemoryKind::registered; }
};

class MemoryMap {
  public:
    void add(MemoryRange range);
    // The range that begins at `base`, removed.
    std::optional<MemoryRange> remove(std::uint64_t base);
    [[nodiscard]] std::optional<MemoryRange> find(std::uint64_t address) const;
    // The first range of which something lies there.
    [[nodiscard]] std::optional<MemoryRange> find_within(std::uint64_t address, std::uint64_t bytes) const;
    // Registered memory of which something lies there, removed.
    std::vector<MemoryRange> remove_registered(std::uint64_t address, std::uint64_t bytes);
    // Everything of a context that has ended, removed.
    std::vector<MemoryRange> remove_of(const ContextState* context);
    // False for every address that no host memory was ever at; without a lock.
    [[nodiscard]] bool may_be_host(std::uint64_t address) const {
        return address >= host_begin_.load(std::memory_order_acquire) &&
               address < host_end_.load(std::memory_order_acquire);
    }
    bool set_sync_memops(std::uint64_t address, bool on);

  private:
    mutable SharedMutex mutex_;
    // So that calls allocate only where there never were as many ranges.
    std::pmr::unsynchronized_pool_resource nodes_ GP_GUARDED_BY(mutex_);
    std::pmr::map<std::uint64_t, MemoryRange> ranges_ GP_GUARDED_BY(mutex_){&nodes_};
    std::uint64_t next_id_ GP_GUARDED_BY(mutex_) = 1;
    std::atomic<std::uint64_t> host_begin_{~std::uint64_t{0}}, host_end_{0};  // around all host memory there was
};

}  // namespace gpupool::client
