// Device memory for explicit allocations: slabs that the server has committed, cut up here.
//
// Small blocks share slabs, large ones have one of their own. An allocation is answered only from memory that the
// server has already committed, so out of memory is always reported by the call that causes it.
//
// What is committed beyond what is in use: a slab for small blocks is as large as all before it together, within
// kLeastSlabBytes and kMaxSlabBytes, so that a program of little memory takes little; the smallest free place that
// fits is taken; of empty slabs the largest stays, and goes when memory is short. So does one spare slab for a large
// block, of up to kMaxSpareBytes, which is asked for before it is needed: where a program takes blocks of the same
// sizes in the same order again, as one that loads the layers of a model does, the next size is foreseen. Where the
// server has no more, a large block may lie in the slabs of small ones.
//
// Threads: any; prepared() the receiving thread's as well. The server is asked without the heap's lock, so that who
// finds room does not wait for who does not; for a slab for small blocks by one thread at a time.
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
    static constexpr std::uint64_t kLargeBytes = 8u << 20;  // from here on a block has a slab of its own
    static constexpr std::uint64_t kMaxSpareBytes = 64u << 20;

    struct Server {
        std::function<CUresult(std::uint64_t address, std::uint64_t bytes)> commit;
        std::function<void(std::uint64_t address, std::uint64_t bytes)> release;
        // As commit, but does not wait: prepared() is told what came of it. Empty: nothing is asked for beforehand.
        std::function<CUresult(std::uint64_t address, std::uint64_t bytes)> prepare = nullptr;
    };

    DeviceHeap(AddressWindow& window, Server server) : window_(window), server_(std::move(server)) {}

    CUresult allocate(std::uint64_t bytes, std::uint64_t& address);
    // The block must be this heap's, and no work that was issued may still use it.
    void free(std::uint64_t address);
    // Gives back what is committed and wholly unused; false: there was nothing.
    bool trim();
    // Everything, when the context has ended: the server keeps the slabs until they are released.
    void clear();
    // What Server::prepare came to. False: nobody asked for a slab there.
    bool prepared(std::uint64_t address, CUresult result);

    // Committed and not in use.
    [[nodiscard]] std::uint64_t free_bytes() const;

  private:
    struct Slab {
        std::uint64_t bytes = 0, used_bytes = 0;
        bool shared = false;
    };
    struct Spare {
        std::uint64_t address = 0, bytes = 0;  // 0: there is none
        bool there = false;                    // not yet, otherwise
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
    // The empty slab that is kept, or slabs_.end().
    SlabPlace find_empty(SlabPlace but) GP_REQUIRES(mutex_);

    AddressWindow& window_;
    const Server server_;
    mutable Mutex mutex_;
    Condition grown_;                                            // or not
    bool growing_ GP_GUARDED_BY(mutex_) = false;                 // a thread asks for a slab for small blocks
    std::uint64_t cleared_ GP_GUARDED_BY(mutex_) = 0;            // how often
    std::map<std::uint64_t, Slab> slabs_ GP_GUARDED_BY(mutex_);  // by address
    std::uint64_t shared_bytes_ GP_GUARDED_BY(mutex_) = 0;       // of slabs for small blocks
    std::pmr::unsynchronized_pool_resource
        nodes_;  // of the next three: calls allocate only where there never were as many
    std::pmr::map<std::uint64_t, std::uint64_t> blocks_ GP_GUARDED_BY(mutex_){&nodes_};  // in use: address, bytes
    // In shared slabs: address, bytes.
    std::pmr::map<std::uint64_t, std::uint64_t> free_ GP_GUARDED_BY(mutex_){&nodes_};
    // Bytes, address.
    std::pmr::set<std::pair<std::uint64_t, std::uint64_t>> free_by_size_ GP_GUARDED_BY(mutex_){&nodes_};
    Spare spare_ GP_GUARDED_BY(mutex_);
    SizeHistory large_ GP_GUARDED_BY(mutex_);  // of large blocks
};

}  // namespace gpupool::client
