// What the driver takes of a device's memory for an array.
//
// It lays texels out in tiles of 64 bytes by 8 rows, 16 of which stand together, so that an array of one texel in each
// of many slices takes 512 times what its texels are. Larger ones have whole pages of 2 MiB, or an equal share of one.
// The rule is no documented one: it was read from an H100 with driver 580 (docs/driver-facts.md).
#pragma once

#include <cstdint>
#include <optional>

#include "protocol/calls/cuda_api.h"

namespace gpupool::worker {

// With that many levels (of an array that has none: 1). None where no memory could hold it.
std::optional<std::uint64_t> array_bytes(CUDA_ARRAY3D_DESCRIPTOR array, unsigned levels);

}  // namespace gpupool::worker
