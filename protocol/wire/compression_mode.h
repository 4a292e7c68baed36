// Whether bulk data is compressed for sending.
#pragma once

#include <cstdint>

namespace gpupool::wire {

enum class CompressionMode : std::uint8_t {
    when_it_pays,  // PackingChoice decides for each piece
    never,
    always,  // every piece that becomes smaller, for tests
};

}  // namespace gpupool::wire
