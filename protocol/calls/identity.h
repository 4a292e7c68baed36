// Distinguishes gpupool's client from a driver: `cuGetExportTable` with this identifier succeeds only on the client.
#pragma once

#include "protocol/calls/cuda_api.h"

namespace gpupool::calls {

inline constexpr CUuuid kClientIdentity = {
    {0x67, 0x70, 0x75, 0x70, 0x6f, 0x6f, 0x6c, 0x2d, 0x63, 0x6c, 0x69, 0x65, 0x6e, 0x74, 0x2d, 0x31}};

}  // namespace gpupool::calls
