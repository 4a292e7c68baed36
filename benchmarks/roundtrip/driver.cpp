#include "benchmarks/roundtrip/driver.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

namespace gpupool::benchmarks {
namespace {

constexpr const char* kNothing = R"(
.version 7.0
.target sm_75
.address_size 64
.visible .entry nothing(.param .u64 nothing_param_0) { ret; }
)";

}  // namespace

void ok(CUresult result, const char* what) {
    if (result != CUDA_SUCCESS) {
        std::fprintf(stderr, "%s gives error %d: is this run with `gpupool run`?\n", what, static_cast<int>(result));
        std::exit(1);
    }
}

namespace {

Driver open_driver() {
    Driver driver;
    void* const library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == nullptr) {
        std::fprintf(stderr, "%s: run this with `gpupool run`\n", dlerror());
        std::exit(1);
    }
#define GP_FIND(name)                                                             \
    driver.name = reinterpret_cast<decltype(driver.name)>(dlsym(library, #name)); \
    ok(driver.name == nullptr ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS, #name);
    GP_DRIVER_FUNCTIONS(GP_FIND)
#undef GP_FIND
    ok(driver.cuInit(0), "cuInit");
    CUcontext context = nullptr;
    ok(driver.cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
    ok(driver.cuCtxSetCurrent(context), "cuCtxSetCurrent");
    ok(driver.cuStreamCreate(&driver.stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    ok(driver.cuEventCreate(&driver.event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
    CUmodule module = nullptr;
    ok(driver.cuModuleLoadData(&module, kNothing), "cuModuleLoadData");
    ok(driver.cuModuleGetFunction(&driver.nothing, module, "nothing"), "cuModuleGetFunction");
    ok(driver.cuMemAlloc_v2(&driver.memory, kMemoryBytes), "cuMemAlloc");
    return driver;
}

}  // namespace

const Driver& driver() {
    static const Driver instance = open_driver();
    return instance;
}

CUresult launch(const Driver& d) {
    CUdeviceptr argument = d.memory;
    void* arguments[] = {&argument};
    return d.cuLaunchKernel(d.nothing, 1, 1, 1, 32, 1, 1, 0, d.stream, arguments, nullptr);
}

CUresult launch_packed(const Driver& d) {
    CUdeviceptr argument = d.memory;
    std::size_t bytes = sizeof argument;
    void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &argument, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                     CU_LAUNCH_PARAM_END};
    return d.cuLaunchKernel(d.nothing, 1, 1, 1, 32, 1, 1, 0, d.stream, nullptr, extra);
}

}  // namespace gpupool::benchmarks
