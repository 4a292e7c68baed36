// The heap of device memory for explicit allocations (cuMemAlloc). The server commits slabs; the heap divides them into
// blocks.
//
// Small blocks share slabs; a large block has a slab of its own. allocate() only hands out committed memory, so the
// call that runs out of memory reports it.
//
// How much is committed beyond what is in use:
// - A new shared slab is as large as all shared slabs together, between kLeastSlabBytes and kMaxSlabBytes. So a program
//   that needs little commits little. The smallest free range that fits is used.
// - The largest empty shared slab is kept until memory is short.
// - One spare slab for a large block, of up to kMaxSpareBytes, is committed before it is needed. Programs that load the
//   layers of a model allocate the same sizes in the same order again, so the next size can be foreseen (SizeHistory).
//   The spare is released when memory is short.
// If the server has no more memory, a large block may lie in a shared slab.
//
// Ownership: owns the slabs until they are released to the server or the session ends.
// Threads: any; prepared() also the receiving thread. Calls to the server are made without the heap's lock, so they do
// not delay threads that find free memory. One thread at a time asks for a shared slab.
// Errors: the driver's.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory_resource>
#include <set>

#include "client/core/memory/address_window.h"
#include "client/core/memory/size_history.h"
#include "common/mutex.h"
#include "protocol/calls/cuda_api.h"

namespace gpupool::client {

class DeviceHeap {
  public:
    static constexpr std::uint64_t kAlignment = 512;
    static constexpr std::uint64_t kLeastSlabBytes = AddressWindow::kGranularity;
    static constexpr std::uint64_t kMaxSlabBytes = 32u << 20;
    static constexpr std::uint64_t kLargeBytes = 8u << 20;  // blocks of at least this size have a slab of their own
    static constexpr std::uint64_t kMaxSpareBytes = 64u << 20;

    struct Server {
        std::function<CUresult(std::uint64_t address, std::uint64_t bytes)> commit;
        std::function<void(std::uint64_t address, std::uint64_t bytes)> release;
        // Like commit, but does not wait: prepared() receives the result. Null: nothing is committed ahead.
        std::function<CUresult(std::uint64_t address, std::uint64_t bytes)> prepare = nullptr;
    };

    DeviceHeap(AddressWindow& window, Server server) : window_(window), server_(std::move(server)) {}

    CUresult allocate(std::uint64_t bytes, std::uint64_t& address);
    // The block must belong to this heap, and no work that was sent may still use it.
    void free(std::uint64_t address);
    // Releases the spare slab and one empty slab. False if there was neither.
    bool trim();
    // The result of Server::prepare. False if no slab was asked for at `address`.
    bool prepared(std::uint64_t address, CUresult result);

    // Bytes that are committed and not in use.
    [[nodiscard]] std::uint64_t free_bytes() const;

  private:
    struct Slab {
        std::uint64_t bytes = 0, used_bytes = 0;
        bool shared = false;
    };
    struct Spare {
        std::uint64_t address = 0, bytes = 0;  // 0: no spare
        bool there = false;                    // committed; false while the server has not answered
    };
    CUresult allocate_large(UniqueLock& lock, std::uint64_t bytes, std::uint64_t& address) GP_REQUIRES(mutex_);
    void prepare_spare(UniqueLock& lock, std::uint64_t bytes) GP_REQUIRES(mutex_);
    bool release_spare(UniqueLock& lock) GP_REQUIRES(mutex_);
    void give_back(UniqueLock& lock, std::uint64_t address, std::uint64_t bytes) GP_REQUIRES(mutex_);
    CUresult commit(UniqueLock& lock, std::uint64_t address, std::uint64_t bytes) GP_REQUIRES(mutex_);
    CUresult commit_slab(UniqueLock& lock, std::uint64_t bytes, bool shared, std::uint64_t& address)
        GP_REQUIRES(mutex_);
    CUresult commit_shared_slab(UniqueLock& lock, std::uint64_t bytes) GP_REQUIRES(mutex_);
    std::uint64_t take(std::uint64_t bytes) GP_REQUIRES(mutex_);
    void note_block(std::uint64_t address, std::uint64_t bytes) GP_REQUIRES(mutex_);
    void put_free(std::uint64_t address, std::uint64_t bytes) GP_REQUIRES(mutex_);
    void erase_free(std::pmr::map<std::uint64_t, std::uint64_t>::iterator it) GP_REQUIRES(mutex_);
    using SlabPlace = std::map<std::uint64_t, Slab>::iterator;
    void release(UniqueLock& lock, SlabPlace slab) GP_REQUIRES(mutex_);
    bool release_empty(UniqueLock& lock) GP_REQUIRES(mutex_);
    void release_if_empty(UniqueLock& lock, SlabPlace slab) GP_REQUIRES(mutex_);
    // The first empty shared slab other than `but`, or slabs_.end().
    SlabPlace find_empty(SlabPlace but) GP_REQUIRES(mutex_);

    AddressWindow& window_;
    const Server server_;
    mutable Mutex mutex_;
    Condition grown_;                                            // notified when growing_ becomes false
    bool growing_ GP_GUARDED_BY(mutex_) = false;                 // a thread is asking for a shared slab
    std::map<std::uint64_t, Slab> slabs_ GP_GUARDED_BY(mutex_);  // by address
    std::uint64_t shared_bytes_ GP_GUARDED_BY(mutex_) = 0;       // total size of the shared slabs
    std::pmr::unsynchronized_pool_resource
        nodes_;  // for the next three: calls allocate only when a map exceeds its largest size so far
    std::pmr::map<std::uint64_t, std::uint64_t> blocks_ GP_GUARDED_BY(mutex_){&nodes_};  // in use: address, bytes
    // In shared slabs: address, bytes.
    std::pmr::map<std::uint64_t, std::uint64_t> free_ GP_GUARDED_BY(mutex_){&nodes_};
    // Bytes, address.
    std::pmr::set<std::pair<std::uint64_t, std::uint64_t>> free_by_size_ GP_GUARDED_BY(mutex_){&nodes_};
    Spare spare_ GP_GUARDED_BY(mutex_);
    SizeHistory large_ GP_GUARDED_BY(mutex_);  // sizes of large blocks
};

}  // namespace gpupool::client
