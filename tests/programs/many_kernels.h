// The parts of many_kernels: each translation unit is a fat binary of its own, with names that the others have too.
//
// Errors: as runtime.h.
#pragma once

namespace gpupool::programs {

// Both run their own kernel `step` (the same name, not the same code) on `data` and count in their own variable
// `calls`.
void run_first_unit(int* data, int count);
void run_second_unit(int* data, int count);
int first_unit_calls();
int second_unit_calls();

}  // namespace gpupool::programs
