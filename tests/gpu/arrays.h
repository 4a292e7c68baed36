// Sections of arrays.cpp that are in arrays_sparse.cpp and arrays_references.cpp.
//
// Threads: a context is current. Errors: as in driver.h.
#pragma once

#include "tests/gpu/driver.h"

namespace gpupool::programs {

void memory_requirements(const Device& device);
void planes();
void sparse_arrays(const Device& device);
void tensor_maps();

void texture_references();
void surface_references();
void references_of_the_program();

}  // namespace gpupool::programs
