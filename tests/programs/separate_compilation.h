// What the units of separate_compilation share: functions and variables of the device, which linking brings together.
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

// The kernel is the other unit's.
void launch_add_totals(const int* values, int count);
