// The name of a code image, from its content.
//
// Ownership: a value. Threads: any. Errors: none.
#pragma once

#include <cstddef>
#include <span>

#include "protocol/calls/internal.h"

namespace gpupool {

ImageHash hash_of(std::span<const std::byte> image);

}  // namespace gpupool
