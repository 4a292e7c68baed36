// The kernels of the driver API programs, with unmangled names, since the programs look them up by name.

extern "C" {

__device__ unsigned device_counter = 5;
__constant__ unsigned constant_table[8] = {10, 20, 30, 40, 50, 60, 70, 80};

// Waits until *flag is set; *outcome is 1 if it was, 2 if the limit was reached first.
__global__ void spin(const volatile unsigned* flag, unsigned* outcome, unsigned limit) {
    unsigned result = 2;
    for (unsigned i = 0; i < limit; i++) {
        if (*flag != 0) {
            result = 1;
            break;
        }
    }
    *outcome = result;
}

// Not atomic on purpose, so it is correct only when launches run one after the other. Counts tickets beyond the log.
__global__ void append_ticket(unsigned* log, unsigned capacity, unsigned* next, unsigned ticket) {
    const unsigned slot = *next;
    if (slot < capacity) {
        log[slot] = ticket;
    }
    *next = slot + 1;
}

// Waits for a request, up to `limit` rounds, and answers with the next number.
__global__ void answer_word(const volatile unsigned* request, volatile unsigned* answer, unsigned limit) {
    for (unsigned i = 0; i < limit; i++) {
        if (const unsigned value = *request; value != 0) {
            *answer = value + 1;
            __threadfence_system();
            return;
        }
    }
}

__global__ void write_odd_bytes(unsigned char* to, unsigned count, unsigned char value) {
    for (unsigned i = 2 * (blockIdx.x * blockDim.x + threadIdx.x) + 1; i < count; i += 2 * blockDim.x * gridDim.x) {
        to[i] = value;
    }
}

__global__ void store_word(unsigned* to, unsigned value) {
    *to = value;
}

__global__ void add_value(unsigned* data, unsigned count, unsigned value) {
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) {
        data[i] += value;
    }
}

__global__ void copy_words(const unsigned* from, unsigned* to, unsigned count) {
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) {
        to[i] = from[i];
    }
}

__global__ void use_globals(unsigned* out) {
    out[threadIdx.x] = constant_table[threadIdx.x % 8] + device_counter;
}

// Sums the block's values in dynamic shared memory.
__global__ void shared_sum(const unsigned* in, unsigned* out) {
    extern __shared__ unsigned values[];
    values[threadIdx.x] = in[threadIdx.x];
    __syncthreads();
    if (threadIdx.x == 0) {
        unsigned sum = 0;
        for (unsigned i = 0; i < blockDim.x; i++) {
            sum += values[i];
        }
        *out = sum;
    }
}

__global__ void read_texture(unsigned* to, cudaTextureObject_t texture) {
    *to = tex1Dfetch<unsigned>(texture, 0);
}

// One block of `count` threads.
__global__ void read_texels(unsigned* to, cudaTextureObject_t texture) {
    to[threadIdx.x] = tex1Dfetch<unsigned>(texture, static_cast<int>(threadIdx.x));
}

// One block, a thread for each texel of a square level.
__global__ void read_level(unsigned* to, cudaTextureObject_t texture, float level) {
    const float width = static_cast<float>(blockDim.x);
    to[threadIdx.y * blockDim.x + threadIdx.x] =
        tex2DLod<unsigned>(texture, (static_cast<float>(threadIdx.x) + 0.5f) / width,
                           (static_cast<float>(threadIdx.y) + 0.5f) / width, level);
}

// One block, a thread for each element.
__global__ void add_to_surface(cudaSurfaceObject_t surface, unsigned value) {
    const int x = static_cast<int>(threadIdx.x * sizeof(unsigned)), y = static_cast<int>(threadIdx.y);
    surf2Dwrite(surf2Dread<unsigned>(surface, x, y) + value, surface, x, y);
}

struct Triple {
    short first;
    double second;
    char third;
};

__global__ void many_parameters(char a, short b, int c, long long d, float e, double f, Triple g, double* out) {
    *out = a + b + c + static_cast<double>(d) + e + f + g.first + g.second + g.third;
}

__global__ void __launch_bounds__(64) bounded(unsigned* out) {
    __shared__ unsigned own[32];
    own[threadIdx.x % 32] = threadIdx.x;
    __syncthreads();
    out[threadIdx.x] = own[threadIdx.x % 32];
}

// A kernel with `bytes` of local memory per thread, through which it passes the value.
#define USE_LOCAL(name, bytes)                                                   \
    __global__ void name(unsigned* to, unsigned value) {                         \
        volatile unsigned local[(bytes) / sizeof(unsigned)];                     \
        local[(value * 31 + blockIdx.x) % ((bytes) / sizeof(unsigned))] = value; \
        *to = local[(value * 31 + blockIdx.x) % ((bytes) / sizeof(unsigned))];   \
    }
USE_LOCAL(use_local_4k, 4 << 10)
USE_LOCAL(use_local_16k, 16 << 10)
USE_LOCAL(use_local_24k, 24 << 10)
USE_LOCAL(use_local_32k, 32 << 10)
USE_LOCAL(use_local_40k, 40 << 10)
USE_LOCAL(use_local_48k, 48 << 10)
USE_LOCAL(use_local_56k, 56 << 10)
USE_LOCAL(use_local_64k, 64 << 10)

}  // extern "C"
