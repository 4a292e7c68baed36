// The map of all known memory, device and pinned host memory, by address.
//
// Ownership: values; lookups return copies.
// Threads: any.
// Errors: none.
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
    device,     // cuMemAlloc and similar calls, at an address that the client chose
    pool,       // stream-ordered
    global,     // a module's variable, at an address that the driver chose
    mapped,     // cuMemMap, within a reservation
    pinned,     // cuMemHostAlloc, cuMemAllocHost
    registered  // cuMemHostRegister
};

struct MemoryRange {
    std::uint64_t base = 0, bytes = 0;
    MemoryKind kind = MemoryKind::device;
    CUdevice device = 0;
    ContextState* context = nullptr;  // null: of none, or of one that has ended
    unsigned flags = 0;
    std::uint64_t id = 0;         // CU_POINTER_ATTRIBUTE_BUFFER_ID
    bool sync_memops = false;     // CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
    CUmemoryPool pool = nullptr;  // of stream-ordered memory; null: the device's current one
    bool of_graph = false;        // a graph's node allocates it, whenever the graph is launched
    bool idle = false;            // it is not allocated at the moment: the program may only name it in graphs
    bool gpu_has = false;         // of host memory: the server shares or mirrors it

    [[nodiscard]] bool on_device() const { return kind != MemoryKind::pinned && kind != MemoryKind::registered; }
};

class MemoryMap {
  public:
    void add(MemoryRange range);
    // Removes and returns the range that begins at `base`.
    std::optional<MemoryRange> remove(std::uint64_t base);
    [[nodiscard]] std::optional<MemoryRange> find(std::uint64_t address) const;
    // The first range that overlaps.
    [[nodiscard]] std::optional<MemoryRange> find_within(std::uint64_t address, std::uint64_t bytes) const;
    // Removes and returns registered memory that overlaps.
    std::vector<MemoryRange> remove_registered(std::uint64_t address, std::uint64_t bytes);
    // The context has ended: removes and returns the memory that ends with it. Memory of pools and graphs stays, and
    // has no context from then on.
    std::vector<MemoryRange> end_context(const ContextState* context);
    // False for an address where there never was host memory. Takes no lock.
    [[nodiscard]] bool may_be_host(std::uint64_t address) const {
        return address >= host_begin() && address < host_end();
    }
    // Bounds of all host memory that there ever was, and how many blocks the GPU does not have now. Take no lock.
    [[nodiscard]] std::uint64_t host_begin() const { return host_begin_.load(std::memory_order_acquire); }
    [[nodiscard]] std::uint64_t host_end() const { return host_end_.load(std::memory_order_acquire); }
    [[nodiscard]] std::size_t hidden_blocks() const { return hidden_blocks_.load(std::memory_order_acquire); }
    // How many blocks were added so far that the GPU did not have at first.
    [[nodiscard]] std::uint64_t hidden_added() const { return hidden_added_.load(std::memory_order_acquire); }
    // The host memory that begins at `base` has a mirror now. False if there is no such memory.
    bool note_mirrored(std::uint64_t base);
    void set_idle(std::uint64_t base, bool idle);
    bool set_sync_memops(std::uint64_t address, bool on);
    // False if set_sync_memops() never turned it on for any memory. Takes no lock.
    [[nodiscard]] bool any_sync_memops() const { return any_sync_memops_.load(std::memory_order_acquire); }

  private:
    using Ranges = std::pmr::map<std::uint64_t, MemoryRange>;
    Ranges::iterator erase(Ranges::iterator it) GP_REQUIRES(mutex_);

    mutable SharedMutex mutex_;
    // Adding a range allocates memory only when there are more ranges than ever before.
    std::pmr::unsynchronized_pool_resource nodes_ GP_GUARDED_BY(mutex_);
    Ranges ranges_ GP_GUARDED_BY(mutex_){&nodes_};
    std::uint64_t next_id_ GP_GUARDED_BY(mutex_) = 1;
    std::atomic<std::uint64_t> host_begin_{~std::uint64_t{0}}, host_end_{0};  // bounds of all host memory so far
    std::atomic<std::uint64_t> hidden_added_{0};
    std::atomic<std::size_t> hidden_blocks_{0};  // changes with ranges_, under mutex_
    std::atomic<bool> any_sync_memops_{false};
};

}  // namespace gpupool::client
