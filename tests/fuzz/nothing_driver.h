// A driver that does nothing and always succeeds, so that every failure is the worker's own.
//
// Its handles are distinct; pinned memory is real, since the worker writes to it. Events are complete at every third
// query, so that work is held and resumed.
#pragma once

#include "server/driver/library.h"

namespace gpupool::fuzz {

const driver::Library& nothing_driver();

// Frees the pinned memory of the session that has ended.
void free_pinned_memory();

}  // namespace gpupool::fuzz
