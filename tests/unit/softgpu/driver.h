// Loads the software GPU's shared library as a worker does, with a current context.
//
// Threads: one test at a time. Errors: a failed check ends the test.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#define __CUDA_API_VERSION_INTERNAL 1
#include <cuda.h>

// CALL(cuMemAlloc_v2)(&p, n): the entry point of that name, with its type.
#define CALL(name) (reinterpret_cast<decltype(&name)>(gpupool::softgpu_test::entry_point(#name)))
#define OK(...) ASSERT_EQ(CUDA_SUCCESS, (__VA_ARGS__))

namespace gpupool::softgpu_test {

inline void* entry_point(const char* name) {
    static void* const library = dlopen(GPUPOOL_SOFTGPU_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        ADD_FAILURE() << dlerror();
        std::abort();
    }
    void* found = dlsym(library, name);
    if (found == nullptr) {
        ADD_FAILURE() << name << " is not exported";
        std::abort();
    }
    return found;
}

inline std::string file_bytes(const char* path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

struct Extent {
    unsigned x = 1, y = 1, z = 1;
};

class DriverTest : public ::testing::Test {
  protected:
    void SetUp() override {
        OK(CALL(cuInit)(0));
        OK(CALL(cuCtxCreate_v2)(&context_, 0, 0));
        OK(CALL(cuModuleLoadData)(&module_, file_bytes(GPUPOOL_SOFTGPU_KERNELS_PTX).c_str()));
    }
    void TearDown() override { CALL(cuCtxDestroy_v2)(context_); }

    CUfunction function(const char* name) {
        CUfunction result = nullptr;
        EXPECT_EQ(CUDA_SUCCESS, CALL(cuModuleGetFunction)(&result, module_, name)) << name;
        return result;
    }
    template <class... Arguments>
    CUresult launch(const char* name, Extent grid, Extent block, unsigned shared, CUstream stream,
                    Arguments... arguments) {
        void* params[] = {&arguments..., nullptr};
        return CALL(cuLaunchKernel)(function(name), grid.x, grid.y, grid.z, block.x, block.y, block.z, shared, stream,
                                    params, nullptr);
    }
    template <class T>
    CUdeviceptr upload(const std::vector<T>& values) {
        CUdeviceptr result = 0;
        EXPECT_EQ(CUDA_SUCCESS, CALL(cuMemAlloc_v2)(&result, values.size() * sizeof(T)));
        EXPECT_EQ(CUDA_SUCCESS, CALL(cuMemcpyHtoD_v2)(result, values.data(), values.size() * sizeof(T)));
        return result;
    }
    template <class T>
    std::vector<T> download(CUdeviceptr from, std::size_t count) {
        std::vector<T> result(count);
        EXPECT_EQ(CUDA_SUCCESS, CALL(cuMemcpyDtoH_v2)(result.data(), from, count * sizeof(T)));
        return result;
    }

    CUcontext context_ = nullptr;
    CUmodule module_ = nullptr;
};

}  // namespace gpupool::softgpu_test
