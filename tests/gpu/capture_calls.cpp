// The results of other calls while a stream captures: each call, from the capturing thread and from another, in each
// mode, and how the capture ends afterwards. Prints only "mode.thread.call=answer/end" lines, so that a native and a
// forwarded run can be compared line by line. Documented results are checked as well.
#include <thread>

#include "tests/gpu/driver.h"
#include "tests/gpu/images.h"

namespace gpupool::programs {

namespace {

// The objects that the calls use, created before any capture.
struct Things {
    Things() : module(kernels_ptx().data), function(module.function("add_value")) {
        DRIVER_OK(cuMemAlloc(&device, kBytes));
        DRIVER_OK(cuMemAllocHost(&pinned, kBytes));
        DRIVER_OK(cuStreamCreate(&capturing, CU_STREAM_NON_BLOCKING));
        DRIVER_OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
        DRIVER_OK(cuEventCreate(&event, CU_EVENT_DEFAULT));
        DRIVER_OK(cuEventRecord(event, other));
        DRIVER_OK(cuDeviceGetDefaultMemPool(&pool, 0));
        DRIVER_OK(cuGraphCreate(&graph, 0));
        DRIVER_OK(cuGraphInstantiate(&executable, graph, 0));
        DRIVER_OK(launch(function, 1, 1, capturing, device, 0u, 0u));
        DRIVER_OK(cuCtxSynchronize());
    }
    ~Things() {
        cuGraphExecDestroy(executable);
        cuGraphDestroy(graph);
        cuEventDestroy(event);
        cuStreamDestroy(other);
        cuStreamDestroy(capturing);
        cuMemFreeHost(pinned);
        cuMemFree(device);
    }
    Things(const Things&) = delete;
    Things& operator=(const Things&) = delete;

    static constexpr size_t kBytes = 4096;
    Module module;
    CUfunction function;
    CUdeviceptr device = 0;
    void* pinned = nullptr;
    CUstream capturing = nullptr, other = nullptr;
    CUevent event = nullptr;
    CUmemoryPool pool = nullptr;
    CUgraph graph = nullptr;
    CUgraphExec executable = nullptr;
    alignas(4096) unsigned char pageable[kBytes] = {};
};

// The first failure among several results.
CUresult first(std::initializer_list<CUresult> results) {
    for (const CUresult result : results) {
        if (result != CUDA_SUCCESS) {
            return result;
        }
    }
    return CUDA_SUCCESS;
}

// Creates an object whose creation the mode might forbid.
template <class Make>
void prepare(Make make) {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    DRIVER_OK(cuThreadExchangeStreamCaptureMode(&mode));
    DRIVER_OK(make());
    DRIVER_OK(cuThreadExchangeStreamCaptureMode(&mode));
}

// Destroys the object that a call created, so that only the call itself is judged.
template <class Destroy>
CUresult undo(CUresult made, Destroy destroy) {
    if (made == CUDA_SUCCESS) {
        prepare(destroy);
    }
    return made;
}

// A freshly loaded library, none of whose code has been used.
CUlibrary load_library() {
    CUlibrary loaded = nullptr;
    prepare(
        [&] { return cuLibraryLoadData(&loaded, kernels_fatbin().data, nullptr, nullptr, 0, nullptr, nullptr, 0); });
    return loaded;
}

CUkernel load_kernel() {
    CUlibrary loaded = load_library();
    CUkernel kernel = nullptr;
    prepare([&] { return cuLibraryGetKernel(&kernel, loaded, "add_value"); });
    return kernel;
}

struct Probe {
    const char* name;
    CUresult (*call)(Things&);
};

const Probe kProbes[] = {
    {"cuMemAlloc",
     [](Things&) {
         CUdeviceptr block = 0;
         const CUresult result = cuMemAlloc(&block, 1024);
         return undo(result, [&] { return cuMemFree(block); });
     }},
    {"cuMemAllocPitch",
     [](Things&) {
         CUdeviceptr block = 0;
         size_t pitch = 0;
         const CUresult result = cuMemAllocPitch(&block, &pitch, 64, 4, 4);
         return undo(result, [&] { return cuMemFree(block); });
     }},
    {"cuMemAllocHost",
     [](Things&) {
         void* block = nullptr;
         const CUresult result = cuMemAllocHost(&block, 4096);
         return undo(result, [&] { return cuMemFreeHost(block); });
     }},
    {"cuMemHostAlloc",
     [](Things&) {
         void* block = nullptr;
         const CUresult result = cuMemHostAlloc(&block, 4096, CU_MEMHOSTALLOC_PORTABLE);
         return undo(result, [&] { return cuMemFreeHost(block); });
     }},
    {"cuMemHostRegister",
     [](Things& things) {
         const CUresult result = cuMemHostRegister(things.pageable, Things::kBytes, 0);
         return undo(result, [&] { return cuMemHostUnregister(things.pageable); });
     }},
    {"cuArrayCreate",
     [](Things&) {
         CUDA_ARRAY_DESCRIPTOR description{};
         description.Width = description.Height = 16;
         description.Format = CU_AD_FORMAT_UNSIGNED_INT32;
         description.NumChannels = 1;
         CUarray array = nullptr;
         const CUresult result = cuArrayCreate(&array, &description);
         return undo(result, [&] { return cuArrayDestroy(array); });
     }},
    {"cuMemcpy", [](Things& things) { return cuMemcpy(things.device, things.device + 2048, 256); }},
    {"cuMemcpyHtoD", [](Things& things) { return cuMemcpyHtoD(things.device, things.pageable, 256); }},
    {"cuMemcpyDtoH", [](Things& things) { return cuMemcpyDtoH(things.pageable, things.device, 256); }},
    {"cuMemcpyDtoD", [](Things& things) { return cuMemcpyDtoD(things.device, things.device + 2048, 256); }},
    {"cuMemsetD8", [](Things& things) { return cuMemsetD8(things.device, 0, 256); }},
    {"cuMemsetD8Async_legacy", [](Things& things) { return cuMemsetD8Async(things.device, 0, 256, nullptr); }},
    {"cuMemsetD8Async_other", [](Things& things) { return cuMemsetD8Async(things.device, 0, 256, things.other); }},
    {"cuMemcpyDtoHAsync_other",
     [](Things& things) { return cuMemcpyDtoHAsync(things.pinned, things.device, 256, things.other); }},
    {"cuMemcpyHtoDAsync_pageable",
     [](Things& things) { return cuMemcpyHtoDAsync(things.device, things.pageable, 256, things.capturing); }},
    {"cuMemcpyDtoHAsync_pageable",
     [](Things& things) { return cuMemcpyDtoHAsync(things.pageable, things.device, 256, things.capturing); }},
    {"cuMemAllocAsync_other",
     [](Things& things) {
         CUdeviceptr block = 0;
         const CUresult result = cuMemAllocAsync(&block, 1024, things.other);
         return undo(result, [&] { return cuMemFreeAsync(block, things.other); });
     }},
    {"cuMemAllocAsync_capturing",
     [](Things& things) {
         CUdeviceptr block = 0;
         const CUresult result = cuMemAllocAsync(&block, 1024, things.capturing);
         return result == CUDA_SUCCESS ? cuMemFreeAsync(block, things.capturing) : result;
     }},
    {"cuMemPoolTrimTo", [](Things& things) { return cuMemPoolTrimTo(things.pool, 0); }},
    {"cuMemPoolCreate",
     [](Things&) {
         CUmemPoolProps properties{};
         properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
         properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
         CUmemoryPool pool = nullptr;
         const CUresult result = cuMemPoolCreate(&pool, &properties);
         return undo(result, [&] { return cuMemPoolDestroy(pool); });
     }},
    {"cuMemCreate",
     [](Things&) {
         CUmemAllocationProp properties{};
         properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
         properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
         CUmemGenericAllocationHandle handle = 0;
         const CUresult result = cuMemCreate(&handle, 2 << 20, &properties, 0);
         return undo(result, [&] { return cuMemRelease(handle); });
     }},
    {"cuMemAddressReserve",
     [](Things&) {
         CUdeviceptr address = 0;
         const CUresult result = cuMemAddressReserve(&address, 2 << 20, 0, 0, 0);
         return undo(result, [&] { return cuMemAddressFree(address, 2 << 20); });
     }},
    {"cuMemGetInfo",
     [](Things&) {
         size_t free_bytes = 0, total = 0;
         return cuMemGetInfo(&free_bytes, &total);
     }},
    {"cuPointerGetAttribute",
     [](Things& things) {
         CUmemorytype type{};
         return cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, things.device);
     }},
    {"cuPointerSetAttribute",
     [](Things& things) {
         int on = 1;
         return cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, things.device);
     }},
    {"cuModuleLoadData",
     [](Things&) {
         CUmodule loaded = nullptr;
         const CUresult result = cuModuleLoadData(&loaded, kernels_ptx().data);
         return undo(result, [&] { return cuModuleUnload(loaded); });
     }},
    {"cuLibraryLoadData",
     [](Things&) {
         CUlibrary loaded = nullptr;
         const CUresult result =
             cuLibraryLoadData(&loaded, kernels_ptx().data, nullptr, nullptr, 0, nullptr, nullptr, 0);
         return undo(result, [&] { return cuLibraryUnload(loaded); });
     }},
    {"cuLibraryLoadData_fatbin",
     [](Things&) {
         CUlibrary loaded = nullptr;
         const CUresult result =
             cuLibraryLoadData(&loaded, kernels_fatbin().data, nullptr, nullptr, 0, nullptr, nullptr, 0);
         return undo(result, [&] { return cuLibraryUnload(loaded); });
     }},
    {"cuLibraryLoadData_preserved",
     [](Things&) {
         CUlibrary loaded = nullptr;
         CUlibraryOption option = CU_LIBRARY_BINARY_IS_PRESERVED;
         int preserved = 1;
         void* value = &preserved;
         const CUresult result =
             cuLibraryLoadData(&loaded, kernels_fatbin().data, nullptr, nullptr, 0, &option, &value, 1);
         return undo(result, [&] { return cuLibraryUnload(loaded); });
     }},
    {"cuLibraryGetKernel_first",
     [](Things&) {
         CUlibrary loaded = load_library();
         CUkernel kernel = nullptr;
         return cuLibraryGetKernel(&kernel, loaded, "add_value");
     }},
    {"cuLibraryGetKernelCount_first",
     [](Things&) {
         CUlibrary loaded = load_library();
         unsigned count = 0;
         return cuLibraryGetKernelCount(&count, loaded);
     }},
    {"cuLibraryGetModule_first",
     [](Things&) {
         CUlibrary loaded = load_library();
         CUmodule module = nullptr;
         return cuLibraryGetModule(&module, loaded);
     }},
    {"cuLibraryGetGlobal_first",
     [](Things&) {
         CUlibrary loaded = load_library();
         CUdeviceptr address = 0;
         size_t size = 0;
         const CUresult result = cuLibraryGetGlobal(&address, &size, loaded, "no_such_global");
         return result == CUDA_ERROR_NOT_FOUND ? CUDA_SUCCESS : result;
     }},
    {"cuKernelGetFunction_first",
     [](Things&) {
         CUkernel kernel = load_kernel();
         CUfunction function = nullptr;
         return cuKernelGetFunction(&function, kernel);
     }},
    {"cuKernelGetAttribute_first",
     [](Things&) {
         CUkernel kernel = load_kernel();
         int value = 0;
         return cuKernelGetAttribute(&value, CU_FUNC_ATTRIBUTE_NUM_REGS, kernel, 0);
     }},
    {"cuKernelSetAttribute_first",
     [](Things&) {
         CUkernel kernel = load_kernel();
         return cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 1024, kernel, 0);
     }},
    {"launch_kernel_first",
     [](Things& things) {
         CUkernel kernel = load_kernel();
         return launch(reinterpret_cast<CUfunction>(kernel), 1, 1, things.capturing, things.device, 0u, 0u);
     }},
    {"launch_function_of_kernel_first",
     [](Things& things) {
         CUkernel kernel = load_kernel();
         CUfunction function = nullptr;
         prepare([&] { return cuKernelGetFunction(&function, kernel); });
         return launch(function, 1, 1, things.capturing, things.device, 0u, 0u);
     }},
    {"cuModuleGetFunction",
     [](Things& things) {
         CUfunction found = nullptr;
         return cuModuleGetFunction(&found, things.module.get(), "store_word");
     }},
    {"cuModuleGetGlobal",
     [](Things& things) {
         CUdeviceptr address = 0;
         size_t size = 0;
         const CUresult result = cuModuleGetGlobal(&address, &size, things.module.get(), "no_such_global");
         return result == CUDA_ERROR_NOT_FOUND ? CUDA_SUCCESS : result;
     }},
    {"cuFuncGetAttribute",
     [](Things& things) {
         int value = 0;
         return cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_NUM_REGS, things.function);
     }},
    {"cuFuncSetAttribute",
     [](Things& things) {
         return cuFuncSetAttribute(things.function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 1024);
     }},
    {"cuOccupancy",
     [](Things& things) {
         int blocks = 0;
         return cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, things.function, 64, 0);
     }},
    {"cuStreamCreate",
     [](Things&) {
         CUstream made = nullptr;
         const CUresult result = cuStreamCreate(&made, CU_STREAM_NON_BLOCKING);
         return undo(result, [&] { return cuStreamDestroy(made); });
     }},
    {"cuStreamQuery_other", [](Things& things) { return cuStreamQuery(things.other); }},
    {"cuStreamQuery_legacy", [](Things&) { return cuStreamQuery(nullptr); }},
    {"cuStreamQuery_capturing", [](Things& things) { return cuStreamQuery(things.capturing); }},
    {"cuStreamSynchronize_other", [](Things& things) { return cuStreamSynchronize(things.other); }},
    {"cuStreamSynchronize_legacy", [](Things&) { return cuStreamSynchronize(nullptr); }},
    {"cuStreamSynchronize_capturing", [](Things& things) { return cuStreamSynchronize(things.capturing); }},
    {"cuStreamGetFlags",
     [](Things& things) {
         unsigned flags = 0;
         return cuStreamGetFlags(things.capturing, &flags);
     }},
    {"cuStreamWaitEvent_capturing",
     [](Things& things) { return cuStreamWaitEvent(things.capturing, things.event, 0); }},
    {"cuEventCreate",
     [](Things&) {
         CUevent made = nullptr;
         const CUresult result = cuEventCreate(&made, CU_EVENT_DEFAULT);
         return undo(result, [&] { return cuEventDestroy(made); });
     }},
    {"cuEventQuery", [](Things& things) { return cuEventQuery(things.event); }},
    {"cuEventSynchronize", [](Things& things) { return cuEventSynchronize(things.event); }},
    {"cuEventElapsedTime",
     [](Things& things) {
         float milliseconds = 0;
         return cuEventElapsedTime(&milliseconds, things.event, things.event);
     }},
    {"cuEventRecord_other", [](Things& things) { return cuEventRecord(things.event, things.other); }},
    {"cuEventRecord_query",
     [](Things& things) {
         CUevent mark = nullptr;
         const CUresult made = cuEventCreate(&mark, CU_EVENT_DISABLE_TIMING);
         const CUresult result =
             made != CUDA_SUCCESS ? made : first({cuEventRecord(mark, things.capturing), cuEventQuery(mark)});
         cuEventDestroy(mark);
         return result;
     }},
    {"cuEventRecord_destroy",
     [](Things& things) {
         CUevent mark = nullptr;
         return first({cuEventCreate(&mark, CU_EVENT_DISABLE_TIMING), cuEventRecord(mark, things.capturing),
                       cuEventDestroy(mark)});
     }},
    {"cuCtxSynchronize", [](Things&) { return cuCtxSynchronize(); }},
    {"cuCtxSetLimit",
     [](Things&) {
         size_t bytes = 0;
         const CUresult result = cuCtxGetLimit(&bytes, CU_LIMIT_STACK_SIZE);
         return result == CUDA_SUCCESS ? cuCtxSetLimit(CU_LIMIT_STACK_SIZE, bytes) : result;
     }},
    {"cuCtxGetApiVersion",
     [](Things&) {
         unsigned version = 0;
         return cuCtxGetApiVersion(nullptr, &version);
     }},
    {"cuLaunchHostFunc",
     [](Things& things) {
         return cuLaunchHostFunc(
             things.capturing, [](void*) {}, nullptr);
     }},
    {"cuStreamAddCallback",
     [](Things& things) {
         return cuStreamAddCallback(
             things.capturing, [](CUstream, CUresult, void*) {}, nullptr, 0);
     }},
    {"cuStreamWriteValue32",
     [](Things& things) { return cuStreamWriteValue32(things.capturing, things.device, 1, 0); }},
    {"cuGraphCreate",
     [](Things&) {
         CUgraph made = nullptr;
         const CUresult result = cuGraphCreate(&made, 0);
         return undo(result, [&] { return cuGraphDestroy(made); });
     }},
    {"cuGraphInstantiate",
     [](Things& things) {
         CUgraphExec made = nullptr;
         const CUresult result = cuGraphInstantiate(&made, things.graph, 0);
         return undo(result, [&] { return cuGraphExecDestroy(made); });
     }},
    {"cuGraphLaunch_other", [](Things& things) { return cuGraphLaunch(things.executable, things.other); }},
    {"cuGraphLaunch_capturing", [](Things& things) { return cuGraphLaunch(things.executable, things.capturing); }},
    {"cuGraphUpload_other", [](Things& things) { return cuGraphUpload(things.executable, things.other); }},
    {"cuStreamBeginCapture_other",
     [](Things& things) {
         CUgraph captured = nullptr;
         const CUresult result = cuStreamBeginCapture(things.other, CU_STREAM_CAPTURE_MODE_RELAXED);
         if (result != CUDA_SUCCESS) {
             return result;
         }
         const CUresult end = cuStreamEndCapture(things.other, &captured);
         return captured != nullptr ? first({end, cuGraphDestroy(captured)}) : end;
     }},
    {"cuMemFree",
     [](Things&) {
         CUdeviceptr block = 0;
         prepare([&] { return cuMemAlloc(&block, 1024); });
         return cuMemFree(block);
     }},
    {"cuMemFreeHost",
     [](Things&) {
         void* block = nullptr;
         prepare([&] { return cuMemAllocHost(&block, 1024); });
         return cuMemFreeHost(block);
     }},
    {"cuMemHostUnregister",
     [](Things& things) {
         prepare([&] { return cuMemHostRegister(things.pageable, Things::kBytes, 0); });
         const CUresult result = cuMemHostUnregister(things.pageable);
         if (result != CUDA_SUCCESS) {
             prepare([&] { return cuMemHostUnregister(things.pageable); });
         }
         return result;
     }},
    {"cuMemFreeAsync_other",
     [](Things& things) {
         CUdeviceptr block = 0;
         prepare([&] { return cuMemAllocAsync(&block, 1024, things.other); });
         return cuMemFreeAsync(block, things.other);
     }},
    {"cuModuleUnload",
     [](Things&) {
         CUmodule loaded = nullptr;
         prepare([&] { return cuModuleLoadData(&loaded, kernels_ptx().data); });
         return cuModuleUnload(loaded);
     }},
    {"cuLibraryUnload",
     [](Things&) {
         CUlibrary loaded = nullptr;
         prepare(
             [&] { return cuLibraryLoadData(&loaded, kernels_ptx().data, nullptr, nullptr, 0, nullptr, nullptr, 0); });
         return cuLibraryUnload(loaded);
     }},
    {"cuArrayDestroy",
     [](Things&) {
         CUDA_ARRAY_DESCRIPTOR description{};
         description.Width = description.Height = 16;
         description.Format = CU_AD_FORMAT_UNSIGNED_INT32;
         description.NumChannels = 1;
         CUarray array = nullptr;
         prepare([&] { return cuArrayCreate(&array, &description); });
         return cuArrayDestroy(array);
     }},
    {"cuMemPoolDestroy",
     [](Things&) {
         CUmemPoolProps properties{};
         properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
         properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
         CUmemoryPool pool = nullptr;
         prepare([&] { return cuMemPoolCreate(&pool, &properties); });
         return cuMemPoolDestroy(pool);
     }},
    {"cuGraphExecDestroy",
     [](Things& things) {
         CUgraphExec made = nullptr;
         prepare([&] { return cuGraphInstantiate(&made, things.graph, 0); });
         return cuGraphExecDestroy(made);
     }},
    {"cuGraphExecUpdate",
     [](Things& things) {
         CUgraphExecUpdateResultInfo information{};
         return cuGraphExecUpdate(things.executable, things.graph, &information);
     }},
    {"cuStreamDestroy_other",
     [](Things&) {
         CUstream made = nullptr;
         prepare([&] { return cuStreamCreate(&made, CU_STREAM_NON_BLOCKING); });
         return cuStreamDestroy(made);
     }},
    {"cuEventDestroy_other",
     [](Things&) {
         CUevent made = nullptr;
         prepare([&] { return cuEventCreate(&made, CU_EVENT_DEFAULT); });
         return cuEventDestroy(made);
     }},
    {"cuModuleGetGlobal_there",
     [](Things&) {
         CUmodule loaded = nullptr;
         CUfunction found = nullptr;
         prepare([&] { return cuModuleLoadData(&loaded, kernels_ptx().data); });
         return cuModuleGetFunction(&found, loaded, "add_value");
     }},
    {"launch_first_time",
     [](Things& things) {
         CUmodule loaded = nullptr;
         CUfunction found = nullptr;
         prepare([&] { return cuModuleLoadData(&loaded, kernels_ptx().data); });
         prepare([&] { return cuModuleGetFunction(&found, loaded, "add_value"); });
         return launch(found, 1, 1, things.capturing, things.device, 0u, 0u);
     }},
    {"cuDevicePrimaryCtxRetain",
     [](Things&) {
         CUcontext context = nullptr;
         const CUresult result = cuDevicePrimaryCtxRetain(&context, 0);
         return undo(result, [&] { return cuDevicePrimaryCtxRelease(0); });
     }},
};

struct Mode {
    const char* name;
    CUstreamCaptureMode mode;
};
const Mode kModes[] = {{"global", CU_STREAM_CAPTURE_MODE_GLOBAL},
                       {"thread_local", CU_STREAM_CAPTURE_MODE_THREAD_LOCAL},
                       {"relaxed", CU_STREAM_CAPTURE_MODE_RELAXED}};

CUresult in_other_thread(const Device& device, const Probe& probe, Things& things) {
    CUresult result = CUDA_ERROR_UNKNOWN;
    std::thread([&] {
        device.use();
        result = probe.call(things);
    }).join();
    return result;
}

void try_in(const Device& device, Things& things, const Mode& mode, const Probe& probe, bool other_thread) {
    DRIVER_OK(cuStreamBeginCapture(things.capturing, mode.mode));
    const CUresult result = other_thread ? in_other_thread(device, probe, things) : probe.call(things);
    CUgraph graph = nullptr;
    const CUresult end = cuStreamEndCapture(things.capturing, &graph);
    size_t nodes = 0;
    if (graph != nullptr) {
        DRIVER_OK(cuGraphGetNodes(graph, nullptr, &nodes));
        DRIVER_OK(cuGraphDestroy(graph));
    }
    printf("%s.%s.%s=%d/%d/%zu\n", mode.name, other_thread ? "other" : "own", probe.name, result, end, nodes);
    const bool forbidden = mode.mode == CU_STREAM_CAPTURE_MODE_GLOBAL ||
                           (mode.mode == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL && !other_thread);
    if (std::string_view(probe.name) == "cuMemAlloc") {
        (result == (forbidden ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS) ? held_checks : failed_checks)
            .fetch_add(1);
    }
}

int run(int argc, char** argv) {
    const Program program("capture_calls", argc, argv);
    const Device device;
    Things things;
    for (const Mode& mode : kModes) {
        for (const bool other_thread : {false, true}) {
            for (const Probe& probe : kProbes) {
                try_in(device, things, mode, probe, other_thread);
            }
        }
    }
    DRIVER_OK(cuCtxSynchronize());
    return failed_checks.load() == 0 ? 0 : 1;
}

}  // namespace

}  // namespace gpupool::programs

int main(int argc, char** argv) {
    return gpupool::programs::run(argc, argv);
}
