// A small per-thread cache of lookups by handle. A hit needs no lock. An entry is valid while the generation that it
// was stored with is current; code that changes the looked-up data increments the generation.
//
// Ownership: copies of the values; keep one instance per thread.
// Threads: only its own.
// Errors: none.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "protocol/codec/handles.h"

namespace gpupool::client {

template <class Handle, class Value, std::size_t kPlaces>
class RecentLookups {
  public:
    struct Place {
        Handle handle{};
        const void* where = nullptr;  // what was searched (a map, a context): one cache may serve several
        std::uint64_t generation = 0;
        Value value{};

        [[nodiscard]] bool holds(Handle of_handle, const void* of_where, std::uint64_t of_generation) const {
            return handle == of_handle && where == of_where && generation == of_generation;
        }
    };
    // Serials of handles are consecutive, so handles created together do not evict each other.
    [[nodiscard]] Place& place_of(Handle handle) { return places_[codec::serial_of(codec::to_wire(handle)) % kPlaces]; }

  private:
    std::array<Place, kPlaces> places_{};
};

}  // namespace gpupool::client
