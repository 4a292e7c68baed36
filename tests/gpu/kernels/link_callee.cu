// The callee's half of the linker test.
extern "C" __device__ unsigned linked_square(unsigned value) {
    return value * value;
}
