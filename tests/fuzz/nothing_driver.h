// A driver that does nothing and always succeeds: what is left to go wrong is the worker's own.
//
// Handles that it makes are distinct; pinned memory is real, since the worker writes to it. Events are complete at
// every third look, so that work is held and resumed.
#pragma once

#include "server/driver/library.h"

namespace gpupool::fuzz {

const driver::Library& nothing_driver();

// Gives back the pinned memory of the session that has ended.
void free_pinned_memory();

}  // namespace gpupool::fuzz
