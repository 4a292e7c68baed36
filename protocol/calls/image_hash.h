// Computes the hash that identifies a code image.
//
// Ownership: a value. Threads: any. Errors: none.
#pragma once

#include <cstddef>
#include <span>

#include "protocol/calls/internal.h"

namespace gpupool {

ImageHash hash_of(std::span<const std::byte> image);

}  // namespace gpupool
