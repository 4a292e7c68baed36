// The range of virtual addresses that client and worker both reserved: every address in it means device memory, on
// either side. The client hands out its parts: to its heap, and to the program what that reserves.
//
// Threads: any. Errors: allocate() and reserve() give 0 when nothing fits.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "common/mutex.h"

namespace gpupool::client {

class AddressWindow {
  public:
    static constexpr std::uint64_t kGranularity = 2u << 20;

    // Ranges that are free in this process, most wanted first; they stay reserved until keep() or abandon().
    static std::vector<std::pair<std::uint64_t, std::uint64_t>> reserve_candidates();
    // Does a server's choice lie within one of them? Its base must be that one's.
    static bool is_offered(const std::vector<std::pair<std::uint64_t, std::uint64_t>>& candidates, std::uint64_t base,
                           std::uint64_t bytes);
    // Keeps the one that the server took, gives the others back.
    void keep(const std::vector<std::pair<std::uint64_t, std::uint64_t>>& candidates, std::uint64_t base,
              std::uint64_t bytes);
    static void abandon(const std::vector<std::pair<std::uint64_t, std::uint64_t>>& candidates);

    [[nodiscard]] bool contains(std::uint64_t address) const { return address - base_ < bytes_; }
    // `alignment` is a power of two, at least the granularity; `wanted` is used when it is free (0: anywhere).
    std::uint64_t allocate(std::uint64_t bytes, std::uint64_t alignment = kGranularity, std::uint64_t wanted = 0);
    void free(std::uint64_t address, std::uint64_t bytes);
    // The same for the program.
    std::uint64_t reserve(std::uint64_t bytes, std::uint64_t alignment, std::uint64_t wanted);
    // False, and nothing is done, where it is not exactly what one reserve() gave.
    bool unreserve(std::uint64_t address, std::uint64_t bytes);
    // Is all of it the program's? It may be of several reservations side by side.
    [[nodiscard]] bool is_reserved(std::uint64_t address, std::uint64_t bytes) const;

  private:
    std::uint64_t allocate_locked(std::uint64_t bytes, std::uint64_t alignment, std::uint64_t wanted)
        GP_REQUIRES(mutex_);
    void free_locked(std::uint64_t address, std::uint64_t bytes) GP_REQUIRES(mutex_);

    std::uint64_t base_ = 0, bytes_ = 0;
    mutable Mutex mutex_;
    // Address, bytes.
    std::map<std::uint64_t, std::uint64_t> free_ GP_GUARDED_BY(mutex_), reserved_ GP_GUARDED_BY(mutex_);
};

}  // namespace gpupool::client
