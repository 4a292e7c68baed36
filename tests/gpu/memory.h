// Sections of memory.cpp that are in memory_more.cpp.
//
// Threads: a context is current. Errors: as in driver.h.
#pragma once

#include "tests/gpu/driver.h"

namespace gpupool::programs {

void exported_memory(const Device& device);
void memory_of_the_host(const Device& device);
void virtual_memory(const Device& device, const Module& module);
void stream_ordered(const Device& device, const Module& module);
void memory_pools(const Device& device);
void host_memory(const Device& device);

void no_bytes();
void unregistering();
void range_of_a_mapping();
void ends();

}  // namespace gpupool::programs
