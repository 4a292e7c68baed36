// Sections of modules.cpp that are in modules_functions.cpp.
//
// Threads: a context is current. Errors: as in driver.h.
#pragma once

#include "tests/gpu/driver.h"

namespace gpupool::programs {

void function_attributes();
void parameter_layout();
void occupancy(const Device& device);
void large_shared_memory(const Device& device);
void attributes_in_order();
void attributes_beside_a_stuck_stream();
void textures_in_order();
void libraries();
void enumeration();
void link_two_units();

}  // namespace gpupool::programs
