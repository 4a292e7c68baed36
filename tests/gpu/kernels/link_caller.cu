// One half of the linker test: calls a function that link_callee.cu defines.
extern "C" __device__ unsigned linked_square(unsigned value);

extern "C" __global__ void call_linked(unsigned* out) {
    out[threadIdx.x] = linked_square(threadIdx.x) + 1;
}
