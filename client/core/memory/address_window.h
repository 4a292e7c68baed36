// The range of virtual addresses that client and worker both reserved: an address in it means device memory on either
// side. The client allocates parts of it for its heap and for reservations of the program (cuMemAddressReserve).
//
// Ownership: owns the reservation, for the life of the process.
// Threads: any.
// Errors: allocate() and reserve() return 0 if nothing fits.
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

    // Reserves ranges that are free in this process and returns them, the preferred ones first. They stay reserved
    // until keep() or abandon().
    static std::vector<std::pair<std::uint64_t, std::uint64_t>> reserve_candidates();
    // Does the server's choice begin at the base of a candidate and fit into it?
    static bool is_offered(const std::vector<std::pair<std::uint64_t, std::uint64_t>>& candidates, std::uint64_t base,
                           std::uint64_t bytes);
    // Keeps the range that the server chose and unmaps the other candidates.
    void keep(const std::vector<std::pair<std::uint64_t, std::uint64_t>>& candidates, std::uint64_t base,
              std::uint64_t bytes);
    static void abandon(const std::vector<std::pair<std::uint64_t, std::uint64_t>>& candidates);

    [[nodiscard]] bool contains(std::uint64_t address) const { return address - base_ < bytes_; }
    // `alignment`: a power of two, at least the granularity. `wanted`: the preferred address, used if free; 0: any.
    std::uint64_t allocate(std::uint64_t bytes, std::uint64_t alignment = kGranularity, std::uint64_t wanted = 0);
    void free(std::uint64_t address, std::uint64_t bytes);
    // The same for a reservation of the program.
    std::uint64_t reserve(std::uint64_t bytes, std::uint64_t alignment, std::uint64_t wanted);
    // False, without effect, unless the range is exactly one that reserve() returned.
    bool unreserve(std::uint64_t address, std::uint64_t bytes);
    // Is all of the range reserved by the program? It may span adjacent reservations.
    [[nodiscard]] bool is_reserved(std::uint64_t address, std::uint64_t bytes) const;
    // The program's reservation that the address is in, as address and bytes; zeros if there is none.
    [[nodiscard]] std::pair<std::uint64_t, std::uint64_t> reservation_of(std::uint64_t address) const;

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
