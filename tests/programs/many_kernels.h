// The parts of many_kernels: each translation unit is its own fat binary, with names that the others have as well.
//
// Errors: as in runtime.h.
#pragma once

namespace gpupool::programs {

// Each runs its own kernel `step` (same name, different code) on `data` and counts in its own variable `calls`.
void run_first_unit(int* data, int count);
void run_second_unit(int* data, int count);
int first_unit_calls();
int second_unit_calls();

}  // namespace gpupool::programs
