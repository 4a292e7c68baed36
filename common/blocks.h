// Blocks of addresses in a map by their first address.
//
// Threads: as for the map.
#pragma once

#include <cstdint>

namespace gpupool {

// The entry whose block holds `address`, end() where none does. `bytes_of` gives the length of a mapped value's block.
template <class Map, class BytesOf>
auto find_block(Map& map, std::uint64_t address, BytesOf bytes_of) {
    auto it = map.upper_bound(address);
    if (it == map.begin()) {
        return map.end();
    }
    --it;
    return address - it->first < bytes_of(it->second) ? it : map.end();
}

}  // namespace gpupool
