// Finds the block that contains an address in an ordered map whose keys are the blocks' first addresses.
//
// Threads: as for the map.
#pragma once

#include <cstdint>

namespace gpupool {

// The entry whose block contains `address`, or end() if there is none. `bytes_of` returns the length of a mapped
// value's block.
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
