// The two-dimensional sections of copies.cpp.
//
// Threads: a context is current. Errors: as driver.h.
#pragma once

namespace gpupool::programs {

void copy_two_dimensions();
void memset_two_dimensions();
void copy_arrays();

}  // namespace gpupool::programs
