// What one thread has found lately by its handle, so that it need not look again, for which it would take a lock. It
// holds until the generation, which whoever changes what is looked up counts on, is another.
//
// Ownership: of copies of the values; keep one per thread. Threads: its own. Errors: none.
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
        const void* where = nullptr;  // it was looked up: handles of several may be kept together
        std::uint64_t generation = 0;
        Value value{};

        [[nodiscard]] bool holds(Handle of_handle, const void* of_where, std::uint64_t of_generation) const {
            return handle == of_handle && where == of_where && generation == of_generation;
        }
    };
    // Serials of handles are consecutive, so that neighbours do not displace each other.
    [[nodiscard]] Place& place_of(Handle handle) { return places_[codec::serial_of(codec::to_wire(handle)) % kPlaces]; }

  private:
    std::array<Place, kPlaces> places_{};
};

}  // namespace gpupool::client
