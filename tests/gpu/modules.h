// Sections of modules.cpp that are in modules_functions.cpp, modules_legacy.cpp and modules_answers.cpp.
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

void legacy_launches();
void legacy_linker();
void more_ways_to_load();
void more_occupancy(const Device& device);

void null_handles();
void without_a_context(const Device& device);
void constants_and_registers();
void occupancy_limits();
void links_that_do_not_fit();
void unload_waits();

}  // namespace gpupool::programs
