// The texture and surface objects that the client knows.
//
// Ownership: numbers only.
// Threads: any.
// Errors: none.
#pragma once

#include "protocol/calls/cuda_api.h"

namespace gpupool::client::entry {

// Forgets the objects of a context that has ended.
void forget_textures(CUcontext context);

}  // namespace gpupool::client::entry
