// The caller's half of the linker test; link_callee.cu defines the function.
extern "C" __device__ unsigned linked_square(unsigned value);

extern "C" __global__ void call_linked(unsigned* out) {
    out[threadIdx.x] = linked_square(threadIdx.x) + 1;
}
