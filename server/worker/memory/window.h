#pragma once

#include <cstdint>

namespace gpupool::worker {

// Device addresses that the client manages itself, reserved with the driver.
struct Window {
    std::uint64_t base = 0, bytes = 0;

    [[nodiscard]] bool contains(std::uint64_t address, std::uint64_t size) const {
        return address >= base && size <= bytes && address - base <= bytes - size;
    }
};

}  // namespace gpupool::worker
