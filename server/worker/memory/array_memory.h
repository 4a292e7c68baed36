// How much device memory the driver takes for an array.
//
// The driver lays texels out in tiles of 64 bytes by 8 rows, 16 of which are kept together, so an array with many
// slices of one texel takes 512 times the size of its texels. Larger arrays take whole pages of 2 MiB, smaller ones an
// equal part of a page. The rule is not documented: it was measured on an H100 with driver 580 (docs/driver-facts.md).
#pragma once

#include <cstdint>
#include <optional>

#include "protocol/calls/cuda_api.h"

namespace gpupool::worker {

// `levels`: mipmap levels, 1 for a plain array. Empty if no memory could hold the array.
std::optional<std::uint64_t> array_bytes(CUDA_ARRAY3D_DESCRIPTOR array, unsigned levels);

}  // namespace gpupool::worker
