// The kernels that driver_test.cpp runs: compiled by nvcc to PTX and to a fat binary.
#include <cooperative_groups.h>

#include <cassert>
#include <cstdio>

extern "C" {

__constant__ float coefficients[4] = {1, 2, 3, 4};
__device__ int counter = 7;

__global__ void count_printed(int* counts) {
    counts[0] = printf("%d of %s, 100%%\n", 1, "two");
    counts[1] = printf("nothing\n");
}

__device__ int* counter_pointer = &counter;

__global__ void vector_add(const float* a, const float* b, float* c, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        c[i] = a[i] + b[i];
    }
}

__global__ void matrix_multiply(const float* a, const float* b, float* c, int n) {
    __shared__ float ta[16][16], tb[16][16];
    const int x = blockIdx.x * 16 + threadIdx.x, y = blockIdx.y * 16 + threadIdx.y;
    float sum = 0;
    for (int t = 0; t < n / 16; ++t) {
        ta[threadIdx.y][threadIdx.x] = a[y * n + t * 16 + threadIdx.x];
        tb[threadIdx.y][threadIdx.x] = b[(t * 16 + threadIdx.y) * n + x];
        __syncthreads();
        for (int k = 0; k < 16; ++k) {
            sum += ta[threadIdx.y][k] * tb[k][threadIdx.x];
        }
        __syncthreads();
    }
    c[y * n + x] = sum;
}

__global__ void reduce(const float* in, float* out, int n) {
    extern __shared__ float partial[];
    float sum = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        sum += in[i];
    }
    for (int offset = 16; offset > 0; offset /= 2) {
        sum += __shfl_down_sync(~0u, sum, offset);
    }
    if (threadIdx.x % 32 == 0) {
        partial[threadIdx.x / 32] = sum;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int i = 1; i < blockDim.x / 32; ++i) {
            sum += partial[i];
        }
        atomicAdd(out, sum);
    }
}

__global__ void histogram(const unsigned char* data, unsigned* bins, int n) {
    __shared__ unsigned local[256];
    for (int i = threadIdx.x; i < 256; i += blockDim.x) {
        local[i] = 0;
    }
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        atomicAdd(&local[data[i]], 1);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < 256; i += blockDim.x) {
        atomicAdd(&bins[i], local[i]);
    }
}

__device__ __noinline__ int fibonacci(int n) {
    return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2);
}
__device__ __noinline__ int triple(int n) {
    return 3 * n;
}
typedef int (*IntFunction)(int);
__device__ IntFunction functions[2] = {fibonacci, triple};

struct Pair {
    int a;
    double b;
    char c[5];
};
__device__ __noinline__ Pair change(Pair p, int k) {
    p.a += k;
    p.b *= coefficients[k & 3];
    p.c[k % 5] = k;
    return p;
}

__global__ void calls(int* out, double* reals, Pair pair, int k) {
    const int t = threadIdx.x;
    out[t] = fibonacci(t % 12) + functions[t & 1](t % 10) + *counter_pointer;
    const Pair p = change(pair, k);
    if (t == 0) {
        out[blockDim.x] = p.a + p.c[k % 5];
    }
    reals[t] = p.b + t;
}

__global__ void mathematics(float* f, double* d, long long* l, int k) {
    const int t = threadIdx.x;
    const float x = f[t];
    f[t] = __sinf(x) + expf(x) + sqrtf(x) + logf(x) / x + rsqrtf(x) + tanhf(x) + sinf(x * 100);
    d[t] = sqrt(d[t]) / x + exp((double)x) + sin(d[t] * 1e3) + pow(d[t], 2.5) + rint((double)x);
    l[t] = (long long)(x * 1000) / k + (unsigned long long)(t * 77777) % (k + 7) + __popc(t) + __clz(t) + __brev(t) +
           __ffs(t) + llrintf(x) + __mul64hi(t * 1000000007LL, 1LL << 40) + (t >> 2) * (t << 3) +
           __byte_perm(t, k, 0x5140);
}

__global__ void local_and_switch(int* out, int k) {
    const int t = threadIdx.x;
    int values[20];
    for (int i = 0; i < 20; ++i) {
        values[i] = k * i + t;
    }
    int result = values[t % 20];
    switch (t % 8) {
        case 0: result += 1; break;
        case 1: result *= 2; break;
        case 2: result -= 3; break;
        case 3: result ^= 4; break;
        case 4: result += 50; break;
        case 5: result *= 6; break;
        case 6: result -= 70; break;
        default: result ^= 8;
    }
    out[t] = result;
}

// Divergent loops behind which the lanes must have reconverged.
__global__ void divergence(unsigned* out) {
    const unsigned t = threadIdx.x;
    unsigned steps = 0, x = t + 1;
    while (x != 1) {
        if (x & 1) {
            x = 3 * x + 1;
            if (x % 5 == 0) {
                steps += 1;
                continue;
            }
        } else {
            x /= 2;
        }
        ++steps;
    }
    out[t] = steps;
    out[32 + t] = __activemask();
    out[64 + t] = __ballot_sync(~0u, t % 3 == 0);
    out[96 + t] = __match_any_sync(~0u, t / 4);
    if (t < 16) {
        out[128 + t] = __activemask();
    } else {
        out[128 + t] = __activemask() + 1;
    }
}

// Every lane of a warp takes the lock, which works only if the lane that holds it gets to run.
__global__ void spin_lock(int* lock, int* value) {
    while (atomicCAS(lock, 0, 1) != 0) {
    }
    __threadfence();
    *(volatile int*)value = *(volatile int*)value + 1;
    __threadfence();
    atomicExch(lock, 0);
}

__global__ void wait_for_flag(volatile int* flag, int* out) {
    while (*flag == 0) {
    }
    *out = *flag;
}

__global__ void for_ever(volatile int* flag) {
    *flag = 1;  // it runs
    while (*flag != 12345) {
    }
}

__global__ void store_at(int* where) {
    *where = 1;
}
__global__ void trap_now() {
    __trap();
}
__global__ void assert_positive(const int* value) {
    assert(*value > 0);
}

__global__ void block_count(int* out) {
    const int odd = __syncthreads_count(threadIdx.x & 1);
    const int any = __syncthreads_or(threadIdx.x == 3);
    const int all = __syncthreads_and(threadIdx.x < 1000);
    if (threadIdx.x == 0) {
        out[0] = odd, out[1] = any, out[2] = all;
    }
}

__global__ void grid_sync(int* out, int n) {
    cooperative_groups::grid_group grid = cooperative_groups::this_grid();
    const int rank = grid.thread_rank();
    out[rank] = rank;
    grid.sync();
    const int other = out[(rank + n / 2) % n];
    grid.sync();
    out[rank] = other;
}

__global__ void append(int* log, int* position, int ticket) {
    log[(*position)++] = ticket;
}

__global__ void integers(unsigned* out, unsigned rounds) {
    unsigned a = threadIdx.x + 1, b = blockIdx.x + 7, c = 12345;
    for (unsigned i = 0; i < rounds; ++i) {
        a = a * 1664525 + b;
        b ^= a >> 7;
        c += b & a;
        a += c << 3;
        b = b * 22695477 + 1;
        c ^= a;
    }
    out[blockIdx.x * blockDim.x + threadIdx.x] = a ^ b ^ c;
}
}
