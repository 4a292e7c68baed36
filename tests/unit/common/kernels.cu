// Compiled into fat binaries of every kind for the reader's tests: parameters of all alignments, one parameter block
// above 4 KB, and enough text for compression to have an effect.
struct Payload {
    int words[8];
};
struct Large {
    int words[1500];
};

extern "C" __global__ void mixed(int* target, char tag, double scale, Payload payload, short shift) {
    target[threadIdx.x] = static_cast<int>(tag * scale) + payload.words[threadIdx.x & 7] + shift;
}

extern "C" __global__ void no_parameters() {}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 700
extern "C" __global__ void large_block(int* target, Large large) {
    target[threadIdx.x] = large.words[threadIdx.x];
}
#endif

template <class T>
__global__ void saxpy(T* y, const T* x, T a, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        y[i] += a * x[i];
    }
}
template __global__ void saxpy<float>(float*, const float*, float, int);
template __global__ void saxpy<double>(double*, const double*, double, int);
