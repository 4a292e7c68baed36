#include <thread>

#include "tests/gpu/driver.h"
#include "tests/gpu/errors.h"
#include "tests/gpu/images.h"

namespace gpupool::programs {

namespace {

// Launches a kernel that fails. The next synchronization reports the error, and it is permanent.
void go_wrong(const char* what, std::initializer_list<CUresult> expected, const char* kernel, void** parameters) {
    const Device device;
    static const Module* const module = new Module(faults_ptx().data);  // cannot be unloaded after the failure
    const CUfunction function = module->function(kernel);
    CUdeviceptr block = 0, other = 0;
    DRIVER_OK(cuMemAlloc(&block, 4096));
    CUstream stream = nullptr;
    CUevent event = nullptr;
    DRIVER_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    DRIVER_OK(cuEventCreate(&event, CU_EVENT_DEFAULT));
    const std::string prefix = std::string(what) + "_";
    const auto say = [&](const char* name, CUresult actual) { report((prefix + name).c_str(), actual, expected); };

    report((prefix + "launch").c_str(), cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr),
           {CUDA_SUCCESS});
    say("stream_synchronize", cuStreamSynchronize(stream));
    say("stream_synchronize_again", cuStreamSynchronize(stream));
    say("context_synchronize", cuCtxSynchronize());
    say("alloc_after", cuMemAlloc(&other, 4096));
    unsigned value = 0;
    say("copy_after", cuMemcpyDtoH(&value, block, sizeof value));
    say("memset_after", cuMemsetD8(block, 0, 16));
    say("launch_after", cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr));
    say("record_after", cuEventRecord(event, stream));
    say("stream_query_after", cuStreamQuery(stream));
    say("free_after", cuMemFree(block));
    CUcontext context = nullptr;
    report((prefix + "current_after").c_str(), cuCtxGetCurrent(&context), {CUDA_SUCCESS});
    int count = 0;
    report((prefix + "device_count_after").c_str(), cuDeviceGetCount(&count), {CUDA_SUCCESS});
}

}  // namespace

void illegal_address() {
    unsigned long long address = 0x10;
    void* parameters[] = {&address};
    go_wrong("illegal_address", {CUDA_ERROR_ILLEGAL_ADDRESS}, "write_address", parameters);
}

void misaligned_address() {
    const Device device;
    CUdeviceptr block = 0;
    DRIVER_OK(cuMemAlloc(&block, 4096));
    unsigned long long address = block + 1;
    void* parameters[] = {&address};
    go_wrong("misaligned_address", {CUDA_ERROR_MISALIGNED_ADDRESS}, "write_address", parameters);
}

void trap() {
    go_wrong("trap", {CUDA_ERROR_LAUNCH_FAILED, CUDA_ERROR_ILLEGAL_INSTRUCTION}, "trap_now", nullptr);
}

void failed_assertion() {
    int value = 1;
    void* parameters[] = {&value};
    go_wrong("assertion", {CUDA_ERROR_ASSERT}, "assert_now", parameters);
}

void mistakes_before_init() {
    int count = 0, version = 0;
    CUdevice device = -1;
    CUcontext context = nullptr;
    CUdeviceptr block = 0;
    report("before_init_device_count", cuDeviceGetCount(&count), {CUDA_ERROR_NOT_INITIALIZED});
    report("before_init_device_get", cuDeviceGet(&device, 0), {CUDA_ERROR_NOT_INITIALIZED});
    report("before_init_current", cuCtxGetCurrent(&context), {CUDA_ERROR_NOT_INITIALIZED});
    report("before_init_alloc", cuMemAlloc(&block, 4096), {CUDA_ERROR_NOT_INITIALIZED});
    report("before_init_synchronize", cuCtxSynchronize(), {CUDA_ERROR_NOT_INITIALIZED});
    report("before_init_version", cuDriverGetVersion(&version), {CUDA_SUCCESS});
    report("init", cuInit(0), {CUDA_SUCCESS});
    report("init_again", cuInit(0), {CUDA_SUCCESS});
}

void mistakes_without_context() {
    DRIVER_OK(cuInit(0));
    CUdeviceptr block = 0;
    CUstream stream = nullptr;
    CUevent event = nullptr;
    CUdevice device = -1;
    CUmodule module = nullptr;
    size_t free_bytes = 0, total_bytes = 0;
    report("no_context_alloc", cuMemAlloc(&block, 4096), {CUDA_ERROR_INVALID_CONTEXT});
    report("no_context_stream", cuStreamCreate(&stream, 0), {CUDA_ERROR_INVALID_CONTEXT});
    report("no_context_event", cuEventCreate(&event, 0), {CUDA_ERROR_INVALID_CONTEXT});
    report("no_context_device", cuCtxGetDevice(&device), {CUDA_ERROR_INVALID_CONTEXT});
    report("no_context_synchronize", cuCtxSynchronize(), {CUDA_ERROR_INVALID_CONTEXT});
    report("no_context_module", cuModuleLoadData(&module, kernels_ptx().data), {CUDA_ERROR_INVALID_CONTEXT});
    report("no_context_info", cuMemGetInfo(&free_bytes, &total_bytes), {CUDA_ERROR_INVALID_CONTEXT});
    report("no_context_pop", cuCtxPopCurrent(nullptr), {CUDA_ERROR_INVALID_CONTEXT});
}

void null_handles() {
    const Device device;
    CUfunction function = nullptr;
    CUgraphExec executable = nullptr;
    CUkernel kernel = nullptr;
    int value = 0;
    report("null_function_launch", cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr), {});
    report("null_module_function", cuModuleGetFunction(&function, nullptr, "store_word"), {});
    report("null_module_unload", cuModuleUnload(nullptr), {});
    report("null_event_query", cuEventQuery(nullptr), {});
    report("null_event_record", cuEventRecord(nullptr, nullptr), {});
    report("null_event_synchronize", cuEventSynchronize(nullptr), {});
    report("null_event_destroy", cuEventDestroy(nullptr), {});
    report("null_stream_destroy", cuStreamDestroy(nullptr), {});
    report("null_function_attribute", cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_NUM_REGS, nullptr), {});
    report("null_library_kernel", cuLibraryGetKernel(&kernel, nullptr, "store_word"), {});
    report("null_graph_instantiate", cuGraphInstantiate(&executable, nullptr, 0), {});
    report("null_graph_launch", cuGraphLaunch(nullptr, nullptr), {});
    report("null_context_destroy", cuCtxDestroy(nullptr), {});
    CUdeviceptr block = 0;
    DRIVER_OK(cuMemAlloc(&block, 1024));
    report("null_array_copy_from", cuMemcpyAtoD(block, nullptr, 0, 64), {});
    report("null_array_copy_to", cuMemcpyDtoA(nullptr, 0, block, 64), {});
    report("null_arrays_copy", cuMemcpyAtoA(nullptr, 0, nullptr, 0, 64), {});
}

// The memory of a failed context is free for the next one once it has been destroyed.
void replaced_context() {
    const Device device;
    for (int round = 0; round < 3; round++) {
        CUcontext context = nullptr;
        if (round != 0 && !device.is_software()) {
            break;  // a GPU's driver creates no further context in a process whose kernel failed
        }
        DRIVER_OK(cuCtxCreate(&context, nullptr, 0, device.device()));
        CUdeviceptr block = 0, large = 0;
        CUmodule module = nullptr;
        CUfunction function = nullptr;
        DRIVER_OK(cuModuleLoadData(&module, faults_ptx().data));
        DRIVER_OK(cuModuleGetFunction(&function, module, "write_address"));
        report("replaced_context_alloc", cuMemAlloc(&block, 4096), {CUDA_SUCCESS});
        report("replaced_context_large_alloc", cuMemAlloc(&large, 64u << 20), {CUDA_SUCCESS});
        report("replaced_context_memset", cuMemsetD8(large, 1, 64u << 20), {CUDA_SUCCESS});
        unsigned long long address = 0x10;
        void* parameters[] = {&address};
        DRIVER_OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr));
        report("replaced_context_synchronize", cuCtxSynchronize(), {CUDA_ERROR_ILLEGAL_ADDRESS});
        cuCtxDestroy(context);
    }
}

void destroyed_context() {
    const Device device;
    CUcontext context = nullptr;
    DRIVER_OK(cuCtxCreate(&context, nullptr, 0, device.device()));
    CUresult alloc = CUDA_SUCCESS, synchronize = CUDA_SUCCESS, create = CUDA_SUCCESS;
    std::thread([&] {
        DRIVER_OK(cuCtxSetCurrent(context));
        std::thread([&] {
            DRIVER_OK(cuCtxSetCurrent(context));
            DRIVER_OK(cuCtxDestroy(context));
        }).join();
        CUdeviceptr block = 0;
        CUstream stream = nullptr;
        alloc = cuMemAlloc(&block, 4096);
        synchronize = cuCtxSynchronize();
        create = cuStreamCreate(&stream, 0);
        cuCtxSetCurrent(nullptr);
    }).join();
    report("destroyed_context_alloc", alloc, {CUDA_ERROR_CONTEXT_IS_DESTROYED});
    report("destroyed_context_synchronize", synchronize, {CUDA_ERROR_CONTEXT_IS_DESTROYED});
    report("destroyed_context_stream", create, {CUDA_ERROR_CONTEXT_IS_DESTROYED});
    device.use();
    report("other_context_synchronize", cuCtxSynchronize(), {CUDA_SUCCESS});
}

}  // namespace gpupool::programs
