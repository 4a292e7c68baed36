// Whether bulk data is compressed on its way.
#pragma once

#include <cstdint>

namespace gpupool::wire {

enum class CompressionMode : std::uint8_t {
    when_it_pays,  // PackingChoice decides, piece by piece
    never,
    always,  // whatever becomes smaller, for tests
};

}  // namespace gpupool::wire
