"""Small programs in the style of cuda-python's users: cuda.bindings (the driver API and NVRTC), and cuda.core."""

import ctypes

from sections import main, section

import numpy as np
from cuda.bindings import driver, nvrtc
from cuda.core import Device, LaunchConfig, Program, ProgramOptions, launch

SOURCE = r"""
extern "C" __global__ void saxpy(float a, const float* x, float* y, size_t n) {
    const size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}
extern "C" __global__ void block_sums(const int* values, int* sums) {
    extern __shared__ int part[];
    part[threadIdx.x] = values[blockIdx.x * blockDim.x + threadIdx.x];
    for (int step = blockDim.x / 2; step > 0; step /= 2) {
        __syncthreads();
        if (threadIdx.x < step) part[threadIdx.x] += part[threadIdx.x + step];
    }
    if (threadIdx.x == 0) sums[blockIdx.x] = part[0];
}
extern "C" __global__ void count_up(unsigned* counter) { atomicAdd(counter, 1u); }
__constant__ int factor = 3;
template <class T>
__global__ void scale(T* values, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) values[i] *= factor;
}
"""


def checked(answer):
    """The results of a bindings call without its status, which must be success."""
    status, *values = answer
    if int(status) != 0:
        raise RuntimeError(f"{status!r}")
    return values[0] if len(values) == 1 else tuple(values)


def compile_ptx(source, names=()):
    """PTX of the source, and the mangled names of `names`."""
    program = checked(nvrtc.nvrtcCreateProgram(source.encode(), b"source.cu", 0, [], []))
    for name in names:
        checked(nvrtc.nvrtcAddNameExpression(program, name))
    options = [b"--gpu-architecture=compute_75"]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    if int(status) != 0:
        log = b" " * checked(nvrtc.nvrtcGetProgramLogSize(program))
        checked(nvrtc.nvrtcGetProgramLog(program, log))
        raise RuntimeError(log.decode())
    ptx = b" " * checked(nvrtc.nvrtcGetPTXSize(program))
    checked(nvrtc.nvrtcGetPTX(program, ptx))
    return ptx, [checked(nvrtc.nvrtcGetLoweredName(program, name)) for name in names]


class Work:
    """A context, a module of SOURCE and a stream."""

    def __init__(self, names=()):
        checked(driver.cuInit(0))
        self.device = checked(driver.cuDeviceGet(0))
        self.context = checked(driver.cuDevicePrimaryCtxRetain(self.device))
        checked(driver.cuCtxSetCurrent(self.context))
        ptx, self.lowered = compile_ptx(SOURCE, names)
        self.module = checked(driver.cuModuleLoadData(ptx))
        self.stream = checked(driver.cuStreamCreate(0))

    def function(self, name):
        return checked(driver.cuModuleGetFunction(self.module, name))

    def to_device(self, values):
        there = checked(driver.cuMemAlloc(values.nbytes))
        checked(driver.cuMemcpyHtoD(there, values.ctypes.data, values.nbytes))
        return there

    def launch(self, function, grid, block, values, types, shared=0):
        checked(driver.cuLaunchKernel(function, grid, 1, 1, block, 1, 1, shared, self.stream, (values, types), 0))


@section
def driver_saxpy():
    work = Work()
    n = 5000
    x, y = np.arange(n, dtype=np.float32), np.ones(n, np.float32)
    expected = np.float32(2) * x + y
    there_x, there_y = work.to_device(x), work.to_device(y)
    work.launch(
        work.function(b"saxpy"),
        (n + 127) // 128,
        128,
        (2.0, there_x, there_y, n),
        (ctypes.c_float, None, None, ctypes.c_size_t),
    )
    checked(driver.cuMemcpyDtoHAsync(y.ctypes.data, there_y, y.nbytes, work.stream))
    checked(driver.cuStreamSynchronize(work.stream))
    np.testing.assert_array_equal(y, expected)
    for there in (there_x, there_y):
        checked(driver.cuMemFree(there))


@section
def driver_shared_memory():
    work = Work()
    values = np.arange(1024, dtype=np.int32)
    sums = np.zeros(8, np.int32)
    there, there_sums = work.to_device(values), work.to_device(sums)
    work.launch(work.function(b"block_sums"), 8, 128, (there, there_sums), (None, None), shared=512)
    checked(driver.cuStreamSynchronize(work.stream))
    checked(driver.cuMemcpyDtoH(sums.ctypes.data, there_sums, sums.nbytes))
    np.testing.assert_array_equal(sums, values.reshape(8, 128).sum(1))


@section
def driver_templates_and_globals():
    work = Work(names=[b"scale<double>"])
    values = np.arange(100, dtype=np.float64)
    there = work.to_device(values)
    work.launch(work.function(work.lowered[0]), 1, 128, (there, 100), (None, ctypes.c_int))
    checked(driver.cuStreamSynchronize(work.stream))
    result = np.zeros_like(values)
    checked(driver.cuMemcpyDtoH(result.ctypes.data, there, result.nbytes))
    np.testing.assert_array_equal(result, values * 3)


@section
def driver_streams_and_events():
    work = Work()
    other = checked(driver.cuStreamCreate(int(driver.CUstream_flags.CU_STREAM_NON_BLOCKING)))
    before, after = (checked(driver.cuEventCreate(0)) for _ in range(2))
    counter = work.to_device(np.zeros(1, np.uint32))
    checked(driver.cuEventRecord(before, work.stream))
    for _ in range(10):
        work.launch(work.function(b"count_up"), 4, 64, (counter,), (None,))
    checked(driver.cuEventRecord(after, work.stream))
    checked(driver.cuStreamWaitEvent(other, after, 0))
    result = np.zeros(1, np.uint32)
    checked(driver.cuMemcpyDtoHAsync(result.ctypes.data, counter, 4, other))
    checked(driver.cuStreamSynchronize(other))
    assert result[0] == 2560, result
    assert checked(driver.cuEventElapsedTime(before, after)) > 0


@section
def driver_graphs():
    work = Work()
    counter = work.to_device(np.zeros(1, np.uint32))
    function = work.function(b"count_up")
    checked(driver.cuStreamBeginCapture(work.stream, driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
    for _ in range(3):
        work.launch(function, 1, 32, (counter,), (None,))
    graph = checked(driver.cuStreamEndCapture(work.stream))
    assert len(checked(driver.cuGraphGetNodes(graph, 10))[0]) >= 3
    executable = checked(driver.cuGraphInstantiate(graph, 0))
    for _ in range(5):
        checked(driver.cuGraphLaunch(executable, work.stream))
    checked(driver.cuStreamSynchronize(work.stream))
    result = np.zeros(1, np.uint32)
    checked(driver.cuMemcpyDtoH(result.ctypes.data, counter, 4))
    assert result[0] == 5 * 3 * 32, result
    checked(driver.cuGraphExecDestroy(executable))
    checked(driver.cuGraphDestroy(graph))


@section
def driver_errors():
    Work()
    (status,) = driver.cuMemFree(12345)
    assert status == driver.CUresult.CUDA_ERROR_INVALID_VALUE, status
    name = checked(driver.cuGetErrorName(status))
    assert name == b"CUDA_ERROR_INVALID_VALUE", name
    status, _ = driver.cuModuleLoadData(b".version 8.0\n.target sm_75\nnonsense\0")
    assert status == driver.CUresult.CUDA_ERROR_INVALID_PTX, status


def core_program(device, names=()):
    options = ProgramOptions(std="c++17", arch="compute_75")
    return Program(SOURCE, code_type="c++", options=options).compile("ptx", name_expressions=names)


@section
def core_launch():
    device = Device()
    device.set_current()
    stream = device.create_stream()
    kernel = core_program(device, ("scale<float>",)).get_kernel("scale<float>")
    n = 1000
    buffer = device.allocate(4 * n, stream=stream)
    values = np.arange(n, dtype=np.float32)
    checked(driver.cuMemcpyHtoDAsync(int(buffer.handle), values.ctypes.data, values.nbytes, stream.handle))
    launch(stream, LaunchConfig(grid=(n + 255) // 256, block=256), kernel, buffer, np.int32(n))
    result = np.zeros_like(values)
    checked(driver.cuMemcpyDtoHAsync(result.ctypes.data, int(buffer.handle), result.nbytes, stream.handle))
    stream.sync()
    np.testing.assert_array_equal(result, values * 3)
    buffer.close(stream)
    stream.close()


@section
def core_events_and_devices():
    device = Device()
    device.set_current()
    assert device.compute_capability >= (7, 5) and device.properties.warp_size == 32
    assert device.name
    stream = device.create_stream()
    before = stream.record(options={"enable_timing": True})
    kernel = core_program(device).get_kernel("count_up")
    buffer = device.allocate(4, stream=stream)
    checked(driver.cuMemsetD32Async(int(buffer.handle), 0, 1, stream.handle))
    launch(stream, LaunchConfig(grid=7, block=96), kernel, buffer)
    after = stream.record(options={"enable_timing": True})
    after.sync()
    assert after - before > 0
    result = np.zeros(1, np.uint32)
    checked(driver.cuMemcpyDtoH(result.ctypes.data, int(buffer.handle), 4))
    assert result[0] == 7 * 96


@section
def core_graphs():
    device = Device()
    device.set_current()
    stream = device.create_stream()
    kernel = core_program(device).get_kernel("count_up")
    counter = checked(driver.cuMemAlloc(4))
    checked(driver.cuMemsetD32(counter, 0, 1))
    builder = device.create_graph_builder().begin_building()
    for _ in range(4):
        launch(builder, LaunchConfig(grid=1, block=32), kernel, int(counter))
    graph = builder.end_building().complete()
    graph.upload(stream)
    for _ in range(3):
        graph.launch(stream)
    stream.sync()
    result = np.zeros(1, np.uint32)
    checked(driver.cuMemcpyDtoH(result.ctypes.data, counter, 4))
    assert result[0] == 4 * 3 * 32, result


if __name__ == "__main__":
    main()
