#include "tests/fuzz/nothing_driver.h"

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <vector>

namespace gpupool::fuzz {
namespace {

template <class Function>
struct Nothing;
template <class... Parameters>
struct Nothing<CUresult (*)(Parameters...)> {
    static CUresult call(Parameters...) { return CUDA_SUCCESS; }
};

std::atomic<std::uintptr_t> next_handle{0x10000};

template <class Handle>
Handle fresh() {
    return reinterpret_cast<Handle>(next_handle.fetch_add(16));
}

struct Pinned {
    std::mutex mutex;
    std::vector<void*> blocks;
};
Pinned& pinned() {
    static auto& instance = *new Pinned;
    return instance;
}

CUresult allocate_pinned(void** address, std::size_t bytes, unsigned) {
    *address = std::calloc(1, bytes);
    const std::lock_guard lock(pinned().mutex);
    pinned().blocks.push_back(*address);
    return CUDA_SUCCESS;
}

CUresult two_parameters(std::size_t index, std::size_t* offset, std::size_t* size) {
    *offset = index * 8;
    *size = 8;
    return index < 2 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

driver::Library make() {
    driver::Library library;
    library.path = "nothing";
    driver::Api& api = library.api;
#define GP_CALL(op, symbol, ...) api.symbol = Nothing<decltype(&::symbol)>::call;
#define GP_PER_THREAD(...)
#include "protocol/calls/table.def"
#undef GP_CALL
#undef GP_PER_THREAD
    api.cuMemHostAlloc = allocate_pinned;
    api.cuMemHostGetDevicePointer_v2 = [](CUdeviceptr* device, void* host, unsigned) {
        *device = reinterpret_cast<CUdeviceptr>(host);
        return CUDA_SUCCESS;
    };
    api.cuEventCreate = [](CUevent* event, unsigned) {
        *event = fresh<CUevent>();
        return CUDA_SUCCESS;
    };
    api.cuStreamCreate = [](CUstream* stream, unsigned) {
        *stream = fresh<CUstream>();
        return CUDA_SUCCESS;
    };
    api.cuStreamCreateWithPriority = [](CUstream* stream, unsigned, int) {
        *stream = fresh<CUstream>();
        return CUDA_SUCCESS;
    };
    api.cuDevicePrimaryCtxRetain = [](CUcontext* context, CUdevice device) {
        *context = fresh<CUcontext>();
        return device == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
    };
    api.cuCtxCreate_v2 = [](CUcontext* context, unsigned, CUdevice device) {
        *context = fresh<CUcontext>();
        return device == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
    };
    api.cuCtxCreate_v3 = [](CUcontext*, CUexecAffinityParam*, int, unsigned, CUdevice) {
        return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
    };
    api.cuEventQuery = [](CUevent) {
        static std::atomic<unsigned> polls{0};
        return polls.fetch_add(1) % 3 == 2 ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
    };
    api.cuLibraryLoadData = [](CUlibrary* handle, const void*, CUjit_option*, void**, unsigned, CUlibraryOption*,
                               void**, unsigned) {
        *handle = fresh<CUlibrary>();
        return CUDA_SUCCESS;
    };
    api.cuModuleLoadDataEx = [](CUmodule* handle, const void*, unsigned, CUjit_option*, void**) {
        *handle = fresh<CUmodule>();
        return CUDA_SUCCESS;
    };
    api.cuLibraryGetKernel = [](CUkernel* handle, CUlibrary, const char*) {
        *handle = fresh<CUkernel>();
        return CUDA_SUCCESS;
    };
    api.cuModuleGetFunction = [](CUfunction* handle, CUmodule, const char*) {
        *handle = fresh<CUfunction>();
        return CUDA_SUCCESS;
    };
    api.cuKernelGetParamInfo = [](CUkernel, std::size_t index, std::size_t* offset, std::size_t* size) {
        return two_parameters(index, offset, size);
    };
    api.cuFuncGetParamInfo = [](CUfunction, std::size_t index, std::size_t* offset, std::size_t* size) {
        return two_parameters(index, offset, size);
    };
    return library;
}

}  // namespace

const driver::Library& nothing_driver() {
    static const auto& library = *new driver::Library(make());
    return library;
}

void free_pinned_memory() {
    const std::lock_guard lock(pinned().mutex);
    for (void* block : pinned().blocks) {
        std::free(block);
    }
    pinned().blocks.clear();
}

}  // namespace gpupool::fuzz
