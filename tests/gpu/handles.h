// Sections of handles.cpp that are in handles_graphs.cpp.
//
// Threads: a context is current. Errors: as in driver.h.
#pragma once

#include "tests/gpu/driver.h"

namespace gpupool::programs {

void copy_nodes(const Device& device);
void kernel_nodes(const Device& device);
void other_nodes(const Device& device);
void captures();

}  // namespace gpupool::programs
