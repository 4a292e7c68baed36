// Texture and surface objects that are known to be there.
#pragma once

#include "protocol/calls/cuda_api.h"

namespace gpupool::client::entry {

// The context has ended, and they with it. Any thread.
void forget_textures(CUcontext context);

}  // namespace gpupool::client::entry
