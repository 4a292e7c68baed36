// fork() and the driver. In a child of a process that has initialized CUDA every call returns
// CUDA_ERROR_NOT_INITIALIZED, and the parent continues. After a fork before initialization both work. A child that
// executes a program starts afresh.
#include "tests/gpu/driver.h"
#include "tests/gpu/images.h"

using namespace gpupool::programs;

namespace {

bool works() {
    const Device device;
    const Module module(kernels_ptx().data);
    CUdeviceptr block = 0;
    unsigned seen = 0;
    DRIVER_OK(cuMemAlloc(&block, sizeof seen));
    DRIVER_OK(launch(module.function("store_word"), 1, 1, nullptr, block, 4711u));
    DRIVER_OK(cuMemcpyDtoH(&seen, block, sizeof seen));
    DRIVER_OK(cuMemFree(block));
    return seen == 4711;
}

void refused(CUdeviceptr block, CUcontext context) {
    int count = 0;
    CUdeviceptr other = 0;
    CUstream stream = nullptr;
    unsigned value = 0;
    check_result(cuDeviceGetCount(&count), CUDA_ERROR_NOT_INITIALIZED, "child: count of devices");
    check_result(cuMemAlloc(&other, 1024), CUDA_ERROR_NOT_INITIALIZED, "child: an allocation");
    check_result(cuMemcpyDtoH(&value, block, sizeof value), CUDA_ERROR_NOT_INITIALIZED, "child: a copy");
    check_result(cuStreamCreate(&stream, 0), CUDA_ERROR_NOT_INITIALIZED, "child: a stream");
    check_result(cuCtxSetCurrent(context), CUDA_ERROR_NOT_INITIALIZED, "child: a context");
    check_result(cuCtxSynchronize(), CUDA_ERROR_NOT_INITIALIZED, "child: synchronizing");
    check_result(cuMemFree(block), CUDA_ERROR_NOT_INITIALIZED, "child: a free");
    const CUresult again = cuInit(0);
    note("child: cuInit gives %s", result_name(again).c_str());
    check(again != CUDA_SUCCESS, "child: it cannot be initialised again");
}

}  // namespace

int main(int argc, char** argv) {
    if (argc == 2 && strcmp(argv[1], "--executed") == 0) {
        limit_seconds(60);
        check(works(), "executed by a child: works");
        return finish("fork, executed");
    }
    Program program("fork", argc, argv);
    program.section("before_init", [] {
        check(child_succeeds([] { check(works(), "child, forked before: works"); }), "a child forked before cuInit");
    });
    program.section("after_init", [] {
        const Device device;
        CUdeviceptr block = 0;
        unsigned seen = 0;
        DRIVER_OK(cuMemAlloc(&block, 1024));
        DRIVER_OK(cuMemsetD32(block, 99, 256));
        DRIVER_OK(cuCtxSynchronize());
        check(child_succeeds([&] { refused(block, device.context()); }), "a child forked after cuInit");
        check(child_succeeds([] { execl("/proc/self/exe", "fork", "--executed", static_cast<char*>(nullptr)); }),
              "a program that a child executed");
        DRIVER_OK(cuMemcpyDtoH(&seen, block, sizeof seen));
        check(seen == 99, "parent: its memory is as it was (%u)", seen);
        check(works(), "parent: continues");
        DRIVER_OK(cuMemFree(block));
    });
    return program.finish();
}
