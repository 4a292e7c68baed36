"""Small programs in the style of Numba's users."""

import math
import warnings

from sections import main, section

import numpy as np
from numba import cuda, float32, int32, vectorize
from numba.cuda.random import create_xoroshiro128p_states, xoroshiro128p_uniform_float32

warnings.simplefilter("ignore", RuntimeWarning)  # about the missing nvJitLink

random = np.random.default_rng(1)


@section
def vector_add():
    @cuda.jit
    def add(a, b, c):
        i = cuda.grid(1)
        if i < c.size:
            c[i] = a[i] + b[i]

    a, b = random.random(10_000), random.random(10_000)
    c = np.zeros_like(a)
    add[(c.size + 255) // 256, 256](a, b, c)
    np.testing.assert_array_equal(c, a + b)


@section
def grid_stride():
    @cuda.jit
    def scale(values, factor):
        for i in range(cuda.grid(1), values.size, cuda.gridsize(1)):
            values[i] *= factor

    values = random.integers(0, 1000, 5003).astype(np.int64)
    expected = values * 7
    scale[3, 96](values, 7)
    np.testing.assert_array_equal(values, expected)


@section
def shared_reduction():
    @cuda.jit
    def sums(values, result):
        part = cuda.shared.array(128, float32)
        i, thread = cuda.grid(1), cuda.threadIdx.x
        part[thread] = values[i] if i < values.size else 0
        cuda.syncthreads()
        step = 64
        while step > 0:
            if thread < step:
                part[thread] += part[thread + step]
            cuda.syncthreads()
            step //= 2
        if thread == 0:
            result[cuda.blockIdx.x] = part[0]

    values = np.arange(1000, dtype=np.float32)
    result = np.zeros(8, np.float32)
    sums[8, 128](values, result)
    assert result.sum() == values.sum(), result


@section
def reduce_function():
    total = cuda.reduce(lambda a, b: a + b)
    values = np.arange(12_345, dtype=np.int64)
    assert total(values) == values.sum()


@section
def matrix_multiply():
    tile = 8

    @cuda.jit
    def multiply(a, b, c):
        a_tile = cuda.shared.array((tile, tile), float32)
        b_tile = cuda.shared.array((tile, tile), float32)
        x, y = cuda.grid(2)
        tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
        total = float32(0)
        for k in range(a.shape[1] // tile):
            a_tile[tx, ty] = a[x, k * tile + ty]
            b_tile[tx, ty] = b[k * tile + tx, y]
            cuda.syncthreads()
            for j in range(tile):
                total += a_tile[tx, j] * b_tile[j, ty]
            cuda.syncthreads()
        c[x, y] = total

    a, b = (random.integers(-9, 9, (32, 32)).astype(np.float32) for _ in range(2))
    c = np.zeros_like(a)
    multiply[(4, 4), (tile, tile)](a, b, c)
    np.testing.assert_array_equal(c, a @ b)


@section
def atomics():
    @cuda.jit
    def count(values, counts, sums, extremes):
        i = cuda.grid(1)
        if i < values.size:
            cuda.atomic.add(counts, values[i] % 10, 1)
            cuda.atomic.add(sums, 0, float(values[i]))
            cuda.atomic.max(extremes, 0, values[i])
            cuda.atomic.min(extremes, 1, values[i])

    values = random.integers(0, 10_000, 4000).astype(np.int32)
    counts, sums = np.zeros(10, np.int32), np.zeros(1)
    extremes = np.array([-1, 1 << 30], np.int32)
    count[32, 128](values, counts, sums, extremes)
    np.testing.assert_array_equal(counts, np.bincount(values % 10, minlength=10))
    assert sums[0] == values.sum()
    assert extremes.tolist() == [values.max(), values.min()]


@section
def compare_and_swap():
    @cuda.jit
    def once(lock, winners):
        if cuda.atomic.cas(lock, 0, 0, 1) == 0:
            cuda.atomic.add(winners, 0, 1)

    lock, winners = np.zeros(1, np.int32), np.zeros(1, np.int32)
    once[4, 64](lock, winners)
    assert lock[0] == 1 and winners[0] == 1


@section
def warp_operations():
    @cuda.jit
    def sums(values, result, votes):
        lane = cuda.laneid
        value = values[cuda.grid(1)]
        votes[cuda.grid(1)] = cuda.ballot_sync(0xFFFFFFFF, value % 2 == 0)
        step = 16
        while step > 0:
            value += cuda.shfl_down_sync(0xFFFFFFFF, value, step)
            step //= 2
        if lane == 0:
            result[cuda.grid(1) // 32] = value

    values = random.integers(0, 100, 64).astype(np.int32)
    result, votes = np.zeros(2, np.int32), np.zeros(64, np.uint32)
    sums[1, 64](values, result, votes)
    np.testing.assert_array_equal(result, values.reshape(2, 32).sum(1))
    bits = 1 << np.arange(32, dtype=np.uint64)
    expected = ((values.reshape(2, 32) % 2 == 0) * bits).sum(1).astype(np.uint32)
    np.testing.assert_array_equal(votes.reshape(2, 32), np.repeat(expected, 32).reshape(2, 32))


@section
def device_functions_and_libdevice():
    @cuda.jit(device=True)
    def norm(x, y):
        return math.sqrt(x * x + y * y)

    @cuda.jit
    def evaluate(x, result):
        i = cuda.grid(1)
        if i < x.size:
            result[i] = norm(math.sin(x[i]), math.exp(-x[i])) + math.pow(x[i], 1.5) + math.erf(x[i])

    x = np.linspace(0.1, 20, 500)
    result = np.zeros_like(x)
    evaluate[4, 128](x, result)
    expected = np.sqrt(np.sin(x) ** 2 + np.exp(-x) ** 2) + x**1.5 + np.array([math.erf(one) for one in x])
    np.testing.assert_allclose(result, expected, rtol=1e-14)


@section
def local_and_constant_arrays():
    table = np.arange(16, dtype=np.float64) ** 2

    @cuda.jit
    def look_up(result):
        constant = cuda.const.array_like(table)
        local = cuda.local.array(4, int32)
        i = cuda.grid(1)
        for j in range(4):
            local[j] = (i + j) % 16
        total = 0.0
        for j in range(4):
            total += constant[local[j]]
        result[i] = total

    result = np.zeros(32)
    look_up[1, 32](result)
    np.testing.assert_array_equal(result, [sum(table[(i + j) % 16] for j in range(4)) for i in range(32)])


@section
def device_arrays():
    values = random.random((20, 30)).astype(np.float32)
    there = cuda.to_device(values)
    assert there.shape == (20, 30) and there.dtype == np.float32
    np.testing.assert_array_equal(there[3:7].copy_to_host(), values[3:7])
    copy = cuda.device_array_like(there)
    copy.copy_to_device(there)
    back = np.empty_like(values)
    copy.copy_to_host(back)
    np.testing.assert_array_equal(back, values)
    pinned = cuda.pinned_array(100, np.int32)
    pinned[:] = np.arange(100)
    np.testing.assert_array_equal(cuda.to_device(pinned).copy_to_host(), np.arange(100))


@section
def structures():
    record = np.dtype([("key", np.int32), ("value", np.float64)], align=True)

    @cuda.jit
    def double(records):
        i = cuda.grid(1)
        if i < records.size:
            records[i].value = records[i].key * 2.0

    records = np.zeros(50, record)
    records["key"] = np.arange(50)
    double[1, 64](records)
    np.testing.assert_array_equal(records["value"], np.arange(50) * 2.0)


@section
def streams():
    @cuda.jit
    def add(values, what):
        i = cuda.grid(1)
        if i < values.size:
            values[i] += what

    several = [cuda.stream() for _ in range(3)]
    hosts = [cuda.pinned_array(1000, np.int32) for _ in several]
    arrays = []
    for number, (stream, host) in enumerate(zip(several, hosts)):
        host[:] = number
        there = cuda.to_device(host, stream=stream)
        for _ in range(10):
            add[8, 128, stream](there, number + 1)
        there.copy_to_host(host, stream=stream)
        arrays.append(there)
    for number, (stream, host) in enumerate(zip(several, hosts)):
        stream.synchronize()
        assert (host == number + 10 * (number + 1)).all(), host


@section
def events():
    @cuda.jit
    def spin(values):
        for i in range(1000):
            values[0] += i

    values = cuda.to_device(np.zeros(1, np.int64))
    first, second = cuda.event(), cuda.event()
    stream = cuda.stream()
    first.record(stream)
    spin[1, 1, stream](values)
    second.record(stream)
    second.synchronize()
    assert first.query() and second.query()
    assert cuda.event_elapsed_time(first, second) > 0
    assert values.copy_to_host()[0] == 1000 * 999 // 2


@section
def element_wise_function():
    @vectorize(["float64(float64, float64)"], target="cuda")
    def distance(x, y):
        return math.hypot(x, y)

    x, y = random.random(777), random.random(777)
    np.testing.assert_allclose(distance(x, y), np.hypot(x, y), rtol=1e-14)


@section
def random_numbers():
    @cuda.jit
    def estimate(states, inside):
        i = cuda.grid(1)
        for _ in range(100):
            x = xoroshiro128p_uniform_float32(states, i)
            y = xoroshiro128p_uniform_float32(states, i)
            if x * x + y * y <= 1:
                inside[i] += 1

    states = create_xoroshiro128p_states(256, seed=5)
    inside = np.zeros(256, np.int32)
    estimate[2, 128](states, inside)
    pi = 4 * inside.sum() / 25_600
    assert abs(pi - math.pi) < 0.05, pi


@section
def grid_synchronization():
    @cuda.jit
    def rotate(values, rounds):
        grid = cuda.cg.this_grid()
        i = cuda.grid(1)
        for _ in range(rounds):
            value = values[(i + 1) % values.size]
            grid.sync()
            values[i] = value
            grid.sync()

    values = np.arange(128, dtype=np.int32)
    rotate[4, 32](values, 5)
    np.testing.assert_array_equal(values, (np.arange(128) + 5) % 128)


@section
def an_error_is_an_exception():
    @cuda.jit
    def store(values):
        values[cuda.grid(1)] = 1

    values = np.zeros(4, np.int32)
    try:
        store[1, 2048](values)
    except Exception as error:
        assert "INVALID_VALUE" in str(error), error
    else:
        raise AssertionError("2048 threads in a block were launched")


if __name__ == "__main__":
    main()
