// Shared by the units of separate_compilation: device functions and variables, which the linker resolves.
#pragma once

using Step = int (*)(int);

struct Totals {
    int calls;
    int sum;
};

extern __device__ int weighted(int index);
extern __device__ Totals totals;
extern __constant__ int weights[4];
extern __device__ Step chosen_step;

// The kernel is defined in the other unit.
void launch_add_totals(const int* values, int count);
