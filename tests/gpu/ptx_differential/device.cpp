#include "tests/gpu/ptx_differential/device.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

namespace gpupool::differential {

// The newest version of each function, as named in cuda.h.
#define CALL(symbol) find<decltype(&symbol)>(GPUPOOL_TEXT(symbol))
#define GPUPOOL_TEXT(symbol) GPUPOOL_TEXT_(symbol)
#define GPUPOOL_TEXT_(symbol) #symbol
#define CHECKED(symbol, ...) check(CALL(symbol)(__VA_ARGS__), #symbol)

template <class F>
F Device::find(const char* symbol) const {
    void* const found = dlsym(library_, symbol);
    if (found == nullptr) {
        fprintf(stderr, "%s has no %s\n", path_.c_str(), symbol);
        exit(2);
    }
    return reinterpret_cast<F>(found);
}

std::string Device::name_of(CUresult result) const {
    const char* text = nullptr;
    CALL(cuGetErrorName)(result, &text);
    return text != nullptr ? text : "error " + std::to_string(result);
}

void Device::check(CUresult result, const char* what) const {
    if (result == CUDA_SUCCESS) {
        return;
    }
    fprintf(stderr, "%s: %s: %s\n", path_.c_str(), what, name_of(result).c_str());
    exit(2);
}

Device::Device(const std::string& library) : path_(library), library_(dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (library_ == nullptr) {
        fprintf(stderr, "%s\n", dlerror());
        exit(2);
    }
    CUdevice device = 0;
    CHECKED(cuInit, 0);
    CHECKED(cuDeviceGet, &device, 0);
    CHECKED(cuDevicePrimaryCtxRetain, &context_, device);
}

std::string Device::name() const {
    char text[256] = {};
    CHECKED(cuDeviceGetName, text, sizeof text, 0);
    return text;
}

void Device::use() const {
    CHECKED(cuCtxSetCurrent, context_);
}

CUmodule Device::load(const std::string& ptx, std::string& error, bool optimize) {
    use();
    char log[2048] = {};
    CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, CU_JIT_OPTIMIZATION_LEVEL};
    void* values[] = {log, reinterpret_cast<void*>(sizeof log), nullptr};
    CUmodule module = nullptr;
    const CUresult result = CALL(cuModuleLoadDataEx)(&module, ptx.c_str(), optimize ? 2 : 3, options, values);
    if (result == CUDA_SUCCESS) {
        return module;
    }
    error = name_of(result) + ": " + log;
    for (char& c : error) {
        if (c == '\n') {
            c = ' ';
        }
    }
    return nullptr;
}

void Device::unload(CUmodule module) {
    use();
    CHECKED(cuModuleUnload, module);
}

CUdeviceptr Device::buffer(CUdeviceptr& address, std::size_t& has, std::size_t bytes) {
    if (has < bytes) {
        if (address != 0) {
            CHECKED(cuMemFree, address);
        }
        CHECKED(cuMemAlloc, &address, bytes);
        has = bytes;
    }
    return address;
}

std::vector<std::uint64_t> Device::run(CUmodule module, const std::string& entry, const std::vector<std::uint64_t>& in,
                                       std::size_t out_words, unsigned threads, bool with_count, std::string& error) {
    use();
    CUfunction function = nullptr;
    CHECKED(cuModuleGetFunction, &function, module, entry.c_str());
    CUdeviceptr from = buffer(in_, in_bytes_, in.size() * 8), to = buffer(out_, out_bytes_, out_words * 8);
    CHECKED(cuMemcpyHtoD, from, in.data(), in.size() * 8);
    CHECKED(cuMemsetD8, to, 0, out_words * 8);
    constexpr unsigned kBlock = 128;
    unsigned count = threads;
    void* parameters[] = {&from, &to, with_count ? &count : nullptr};
    // The software GPU reports unknown instructions at the launch.
    const CUresult launched = CALL(cuLaunchKernel)(function, (threads + kBlock - 1) / kBlock, 1, 1, kBlock, 1, 1, 0,
                                                   nullptr, parameters, nullptr);
    if (launched != CUDA_SUCCESS) {
        error = name_of(launched);
        return {};
    }
    if (const CUresult result = CALL(cuCtxSynchronize)(); result != CUDA_SUCCESS) {
        error = name_of(result);
        return {};
    }
    std::vector<std::uint64_t> out(out_words);
    CHECKED(cuMemcpyDtoH, out.data(), to, out_words * 8);
    return out;
}

}  // namespace gpupool::differential
