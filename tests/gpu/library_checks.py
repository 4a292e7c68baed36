#!/usr/bin/env python3
"""Compares further Python GPU packages with the CPU: Triton, CuPy, JAX and Numba, each of which finds the driver
differently.

Packages that are not installed are skipped. Prints one `name value` line per check, the same in every run. Exit status:
0 when every check passed.
"""

import importlib
import os
import sys

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import checks
import numpy
from checks import check

VERSIONS = {}


def library(name):
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        raise checks.Absent(name) from error
    VERSIONS[name] = getattr(module, "__version__", "?")
    return module


def random(*shape, seed=0, dtype=numpy.float32):
    return numpy.random.default_rng(seed).standard_normal(shape).astype(dtype)


def close(actual, expected, relative=1e-4):
    numpy.testing.assert_allclose(
        numpy.asarray(actual, dtype=numpy.float64), expected.astype(numpy.float64), rtol=relative, atol=relative
    )


def total(values):
    return f"{numpy.asarray(values, dtype=numpy.float64).sum():.6g}"


@check
def triton_add():
    torch = library("torch")
    library("triton")
    import triton_kernels

    a, b = random(10_000), random(10_000, seed=1)
    out = triton_kernels.add(torch.from_numpy(a).cuda(), torch.from_numpy(b).cuda()).cpu().numpy()
    close(out, a + b)
    return total(out)


@check
def triton_matmul_fp16():
    torch = library("torch")
    library("triton")
    import triton_kernels

    a, b = random(256, 128, dtype=numpy.float16), random(128, 192, seed=1, dtype=numpy.float16)
    out = triton_kernels.matmul(torch.from_numpy(a).cuda(), torch.from_numpy(b).cuda()).cpu().numpy()
    close(out, a.astype(numpy.float32) @ b.astype(numpy.float32), 2e-2)
    return total(out)


@check
def torch_compile():
    torch = library("torch")
    library("triton")

    def step(x):
        return (torch.sin(x) * 2 + x.square()).sum(dim=1)

    x = torch.from_numpy(random(64, 512))
    out = torch.compile(step)(x.cuda()).cpu()
    close(out.numpy(), step(x).numpy())
    return total(out.numpy())


@check
def cupy_matmul():
    cupy = library("cupy")
    a, b = random(200, 300), random(300, 100, seed=1)
    out = cupy.asnumpy(cupy.asarray(a) @ cupy.asarray(b))
    close(out, a @ b, 1e-3)
    return total(out)


@check
def cupy_raw_kernel():
    cupy = library("cupy")
    kernel = cupy.RawKernel(
        r"""extern "C" __global__ void scale(const float* x, float* y, int n, float by) {
            int i = blockDim.x * blockIdx.x + threadIdx.x;
            if (i < n) y[i] = x[i] * by;
        }""",
        "scale",
    )
    x = random(5000)
    given, out = cupy.asarray(x), cupy.zeros(5000, dtype=cupy.float32)
    kernel((20,), (256,), (given, out, numpy.int32(5000), numpy.float32(3)))
    close(cupy.asnumpy(out), x * 3)
    return total(cupy.asnumpy(out))


@check
def cupy_reduction_and_sort():
    cupy = library("cupy")
    x = random(100_000)
    given = cupy.asarray(x)
    close(float(cupy.asnumpy(cupy.square(given).sum())), numpy.asarray(numpy.square(x).sum()), 1e-3)
    numpy.testing.assert_array_equal(cupy.asnumpy(cupy.sort(given)), numpy.sort(x))
    return total(numpy.sort(x)[:100])


@check
def jax_matmul_and_gradient():
    jax = library("jax")
    if jax.default_backend() != "gpu":
        raise AssertionError(f"JAX's backend is {jax.default_backend()}")
    a, b = random(128, 64), random(64, 32, seed=1)
    out = jax.jit(lambda x, y: jax.numpy.tanh(x @ y))(a, b)
    close(out, numpy.tanh(a @ b), 1e-2)
    gradient = jax.jit(jax.grad(lambda x: (jax.numpy.sin(x) ** 2).sum()))(a)
    close(gradient, numpy.sin(2 * a), 1e-3)
    return f"{gradient.shape[0]}x{gradient.shape[1]}"


@check
def numba_add():
    if not hasattr(numpy, "row_stack"):  # NumPy 2.5 removed it, while releases of numba-cuda still refer to it
        numpy.row_stack = numpy.vstack
    library("numba")
    try:
        from numba import cuda
    except ImportError as error:
        raise checks.Absent("numba.cuda") from error

    @cuda.jit
    def add(x, y, out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = x[i] + y[i]

    x, y = random(3000), random(3000, seed=1)
    out = cuda.device_array_like(x)
    add[12, 256](cuda.to_device(x), cuda.to_device(y), out)
    close(out.copy_to_host(), x + y)
    return total(out.copy_to_host())


if __name__ == "__main__":
    sys.exit(checks.main(__doc__, versions=VERSIONS))
