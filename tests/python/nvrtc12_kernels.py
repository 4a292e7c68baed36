"""Kernels compiled by CUDA 12's compiler (NVRTC, since PyPI has no nvcc 12) with several options, run by the driver
API.

GPUPOOL_TEST_NVRTC12 names the folder with the packages from PyPI: cuda_nvrtc, cuda_runtime and cuda_cccl.
"""

import ctypes
import os
from pathlib import Path

from sections import SECTIONS, main

import numpy as np
from cuda.bindings import driver

SOURCE = r"""
#include <cooperative_groups.h>
#include <cuda_fp16.h>

struct Pair { float real, imaginary; };

__device__ unsigned total;
__device__ int table[4] = {3, 1, 4, 1};
__constant__ double weights[3] = {0.5, 0.25, 0.125};

__device__ __noinline__ unsigned long long fibonacci(unsigned n) {
    return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2);
}
__device__ __noinline__ int add(int a, int b) { return a + b; }
__device__ __noinline__ int subtract(int a, int b) { return a - b; }

template <class T>
__device__ T polynomial(T x) {
    return x * (x * T(3) + T(2)) + T(1);
}

extern "C" __global__ void integers(const int* in, long long* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const int x = in[i];
    long long sum = 0;
    for (int k = 1; k <= (x & 7) + 1; ++k) sum += (long long)x * k / (k + 1) + x % k;
    switch (x & 7) {
        case 0: sum ^= __popc(x); break;
        case 1: sum += __clz(x); break;
        case 2: sum -= __brev(x) >> 7; break;
        case 3: sum *= 3; break;
        case 4: sum += __mulhi(x, 0x12345678); break;
        case 5: sum = ~sum; break;
        default: sum += table[x & 3];
    }
    out[i] = sum;
}

extern "C" __global__ void floats(const float* in, float* out, double* precise, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const float x = in[i];
    out[i] = polynomial(x) / 7.0f + sqrtf(x) + sinf(x) * expf(-x);
    precise[i] = polynomial<double>(x) / 7.0 + sqrt((double)x) + sin((double)x) * exp(-(double)x) + weights[i % 3];
}

extern "C" __global__ void halves(const float* in, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const __half2 x = __floats2half2_rn(in[i], 1.0f);
    out[i] = __low2float(__hadd2(__hmul2(x, x), x));
}

extern "C" __global__ void block_sums(const int* in, int* out) {
    __shared__ int part[128];
    namespace cg = cooperative_groups;
    const auto block = cg::this_thread_block();
    const auto warp = cg::tiled_partition<32>(block);
    int value = in[blockIdx.x * blockDim.x + threadIdx.x];
    for (int step = 16; step > 0; step /= 2) value += warp.shfl_down(value, step);
    if (warp.thread_rank() == 0) part[threadIdx.x / 32] = value;
    block.sync();
    if (threadIdx.x == 0) {
        for (int k = 1; k < blockDim.x / 32; ++k) value += part[k];
        out[blockIdx.x] = value;
        atomicAdd(&total, value);
    }
}

extern "C" __global__ void calls(unsigned long long* out, int which) {
    int (*const functions[])(int, int) = {add, subtract};
    out[threadIdx.x] = fibonacci(threadIdx.x) * 10 + functions[(threadIdx.x + which) & 1](5, 3);
}

extern "C" __global__ void structures(const Pair* in, Pair* out, Pair factor, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const Pair x = in[i];
    int order[8];
    for (int k = 0; k < 8; ++k) order[k] = (k * 5 + i) & 7;
    Pair result = {0, 0};
    for (int k = 0; k < 8; ++k) {
        result.real += (x.real * factor.real - x.imaginary * factor.imaginary) * order[order[k]];
        result.imaginary += (x.real * factor.imaginary + x.imaginary * factor.real) * order[k];
    }
    out[i] = result;
}
"""

# NVRTC's equivalents of nvcc 12's options; -G is nvcc's -O0 for device code.
VARIANTS = {
    "default": ["--gpu-architecture=compute_75"],
    "debug": ["--gpu-architecture=compute_75", "-G"],
    "debug_optimized": ["--gpu-architecture=compute_80", "-G", "--dopt=on"],
    "line_information": ["--gpu-architecture=compute_86", "-lineinfo"],
    "fast_math": ["--gpu-architecture=compute_75", "--use_fast_math"],
    "no_contraction": ["--gpu-architecture=compute_70", "--fmad=false"],
    "flushed": ["--gpu-architecture=compute_75", "--ftz=true", "--prec-div=false", "--prec-sqrt=false"],
    "separate_compilation": ["--gpu-architecture=compute_75", "-rdc=true"],
    "few_registers": ["--gpu-architecture=compute_75", "--maxrregcount=24"],
    "more_vectors": ["--gpu-architecture=compute_75", "--extra-device-vectorization", "--std=c++11"],
    "compute_50": ["--gpu-architecture=compute_50"],
    "compute_60": ["--gpu-architecture=compute_60"],
    "compute_89": ["--gpu-architecture=compute_89", "--std=c++20"],
    "compute_90": ["--gpu-architecture=compute_90"],
}


PACKAGES = Path(os.environ["GPUPOOL_TEST_NVRTC12"])


class Nvrtc:
    """The functions of NVRTC 12 that this program uses."""

    def __init__(self):
        # NVRTC opens this one by its plain name, which a sanitizer's dlopen does not find beside it.
        folder = PACKAGES / "cuda_nvrtc/lib"
        self.builtins = ctypes.CDLL(str(folder / "libnvrtc-builtins.so.12.9"))
        self.library = ctypes.CDLL(str(folder / "libnvrtc.so.12"))
        version = [ctypes.c_int(), ctypes.c_int()]
        self.call("nvrtcVersion", *map(ctypes.byref, version))
        assert version[0].value == 12, "this is not NVRTC 12"

    def call(self, name, *arguments):
        status = getattr(self.library, name)(*arguments)
        assert status == 0, f"{name} gives {status}"

    def text(self, kind, program):
        size = ctypes.c_size_t()
        self.call(f"nvrtcGet{kind}Size", program, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value)
        self.call(f"nvrtcGet{kind}", program, text)
        return text.value

    def compile(self, source, options):
        program = ctypes.c_void_p()
        self.call("nvrtcCreateProgram", ctypes.byref(program), source.encode(), b"kernels.cu", 0, None, None)
        options = [
            *options,
            *(f"--include-path={PACKAGES / part / 'include'}" for part in ("cuda_runtime", "cuda_cccl")),
        ]
        array = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
        status = self.library.nvrtcCompileProgram(program, len(options), array)
        assert status == 0, self.text("ProgramLog", program).decode()
        return self.text("PTX", program) + b"\0"


def checked(answer):
    status, *values = answer
    assert int(status) == 0, status
    return values[0] if len(values) == 1 else tuple(values)


class Module:
    def __init__(self, ptx):
        checked(driver.cuInit(0))
        checked(driver.cuCtxSetCurrent(checked(driver.cuDevicePrimaryCtxRetain(0))))
        self.module = checked(driver.cuModuleLoadData(ptx))

    def run(self, name, grid, block, *arguments):
        """Copies array arguments to the device and back; other arguments are (value, type) pairs."""
        values, types, there = [], [], []
        for argument in arguments:
            if isinstance(argument, np.ndarray):
                address = checked(driver.cuMemAlloc(argument.nbytes))
                checked(driver.cuMemcpyHtoD(address, argument.ctypes.data, argument.nbytes))
                there.append((argument, address))
                values.append(address)
                types.append(None)
            else:
                values.append(argument[0])
                types.append(argument[1])
        function = checked(driver.cuModuleGetFunction(self.module, name.encode()))
        checked(driver.cuLaunchKernel(function, grid, 1, 1, block, 1, 1, 0, 0, (tuple(values), tuple(types)), 0))
        checked(driver.cuCtxSynchronize())
        for array, address in there:
            checked(driver.cuMemcpyDtoH(array.ctypes.data, address, array.nbytes))
            checked(driver.cuMemFree(address))

    def word(self, name):
        address, _ = checked(driver.cuModuleGetGlobal(self.module, name.encode()))
        value = np.zeros(1, np.uint32)
        checked(driver.cuMemcpyDtoH(value.ctypes.data, address, 4))
        return int(value[0])


def quotient(a, b):  # rounds as C++ does
    return abs(a) // b * (1 if a >= 0 else -1)


def expected_integer(x):
    unsigned = x & 0xFFFFFFFF
    total = 0
    for k in range(1, (x & 7) + 2):
        total += quotient(x * k, k + 1) + (x - quotient(x, k) * k)
    kind = x & 7
    if kind == 0:
        total ^= bin(unsigned).count("1")
    elif kind == 1:
        total += 32 - unsigned.bit_length()
    elif kind == 2:
        total -= int(f"{unsigned:032b}"[::-1], 2) >> 7
    elif kind == 3:
        total *= 3
    elif kind == 4:
        total += (x * 0x12345678) >> 32
    elif kind == 5:
        total = ~total
    else:
        total += (3, 1, 4, 1)[x & 3]
    return total


def check_all(module, approximate):
    random = np.random.default_rng(3)
    n = 500
    number = (n, ctypes.c_int)

    integers, result = random.integers(-(2**31), 2**31, n).astype(np.int32), np.zeros(n, np.int64)
    module.run("integers", 4, 128, integers, result, number)
    np.testing.assert_array_equal(result, [expected_integer(int(x)) for x in integers])

    x = random.random(n).astype(np.float32) * 6
    single, precise = np.zeros(n, np.float32), np.zeros(n)
    module.run("floats", 4, 128, x, single, precise, number)
    wide = x.astype(np.float64)
    expected = (wide * (wide * 3 + 2) + 1) / 7 + np.sqrt(wide) + np.sin(wide) * np.exp(-wide)
    np.testing.assert_allclose(single, expected, rtol=1e-4 if approximate else 2e-6)
    np.testing.assert_allclose(precise, expected + np.array([0.5, 0.25, 0.125])[np.arange(n) % 3], rtol=1e-14)

    halves = np.zeros(n, np.float32)
    module.run("halves", 4, 128, x, halves, number)
    half = x.astype(np.float16)
    np.testing.assert_allclose(halves, half * half + half, rtol=2e-3)

    values, sums = random.integers(0, 1000, 1024).astype(np.int32), np.zeros(8, np.int32)
    module.run("block_sums", 8, 128, values, sums)
    np.testing.assert_array_equal(sums, values.reshape(8, 128).sum(1))
    assert module.word("total") == values.sum()

    results = np.zeros(12, np.uint64)
    module.run("calls", 1, 12, results, (1, ctypes.c_int))
    fibonacci = [0, 1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89]
    assert results.tolist() == [10 * f + (2 if i % 2 == 0 else 8) for i, f in enumerate(fibonacci)], results

    class Pair(ctypes.Structure):
        _fields_ = [("real", ctypes.c_float), ("imaginary", ctypes.c_float)]

    pairs, products = random.integers(-9, 9, (n, 2)).astype(np.float32), np.zeros((n, 2), np.float32)
    factor = Pair(2, -3)
    module.run("structures", 4, 128, pairs, products, (factor, None), number)
    order = (np.arange(8) * 5 + np.arange(n)[:, None]) & 7
    again = np.take_along_axis(order, order, 1)
    np.testing.assert_array_equal(products[:, 0], (pairs[:, 0] * 2 + pairs[:, 1] * 3) * again.sum(1))
    np.testing.assert_array_equal(products[:, 1], (-pairs[:, 0] * 3 + pairs[:, 1] * 2) * order.sum(1))


def run_variant(name):
    ptx = Nvrtc().compile(SOURCE, VARIANTS[name])
    check_all(Module(ptx), approximate=name in ("fast_math", "flushed"))


for variant in VARIANTS:
    SECTIONS[variant] = lambda variant=variant: run_variant(variant)


if __name__ == "__main__":
    main()
