// Further sections of copies.cpp.
//
// Threads: a context is current. Errors: as in driver.h.
#pragma once

namespace gpupool::programs {

void copy_two_dimensions();
void memset_two_dimensions();
void copy_arrays();
void copy_in_order();             // copies_order.cpp
void rows_behind_their_caller();  // copies_order.cpp

}  // namespace gpupool::programs
