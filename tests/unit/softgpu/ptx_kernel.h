// Kernels whose PTX body a test writes: `.param .u64 out, .param .u64 in`, with registers declared and both addresses
// loaded.
//
// Threads: one test at a time. Errors: a failed check ends the test.
#pragma once

#include "tests/unit/softgpu/driver.h"

namespace gpupool::softgpu_test {

class PtxKernelTest : public DriverTest {
  protected:
    // %out and %in hold the addresses, %tid the thread's index in its block; %r, %rd, %h, %f, %fd and %p are free.
    CUfunction compile(const std::string& body, const std::string& directives = "") {
        const std::string text =
            ".version 8.6\n.target sm_90\n.address_size 64\n"
            ".visible .entry kernel(.param .u64 out_address, .param .u64 in_address) " +
            directives +
            " {\n.reg .pred %p<8>; .reg .b16 %h<40>; .reg .b32 %r<40>; .reg .b64 %rd<20>; .reg .f32 %f<40>;\n"
            ".reg .f64 %fd<10>; .reg .b64 %out, %in; .reg .b32 %thread;\n"
            "ld.param.u64 %out, [out_address]; ld.param.u64 %in, [in_address]; mov.u32 %thread, %tid.x;\n" +
            body + "\nret;\n}\n";
        CUmodule module = nullptr;
        char log[1024] = "";
        CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
        void* values[] = {log, reinterpret_cast<void*>(sizeof log)};
        const CUresult loaded = CALL(cuModuleLoadDataEx)(&module, text.c_str(), 2, options, values);
        EXPECT_EQ(CUDA_SUCCESS, loaded) << log;
        CUfunction function = nullptr;
        if (loaded == CUDA_SUCCESS) {
            EXPECT_EQ(CUDA_SUCCESS, CALL(cuModuleGetFunction)(&function, module, "kernel"));
        }
        return function;
    }

    CUresult start(CUfunction function, Extent grid, Extent block, CUdeviceptr out, CUdeviceptr in) {
        void* params[] = {&out, &in, nullptr};
        const CUresult launched = CALL(cuLaunchKernel)(function, grid.x, grid.y, grid.z, block.x, block.y, block.z, 0,
                                                       nullptr, params, nullptr);
        return launched != CUDA_SUCCESS ? launched : CALL(cuCtxSynchronize)();
    }

    // Runs one block and returns the `count` values that it wrote to `out`.
    template <class T, class I>
    std::vector<T> run(const std::string& body, unsigned threads, std::size_t count, const std::vector<I>& in) {
        const CUdeviceptr out = upload(std::vector<T>(count));
        EXPECT_EQ(CUDA_SUCCESS, start(compile(body), {1}, {threads}, out, upload(in)));
        return download<T>(out, count);
    }
};

// Computes %rd10 = %out + thread * bytes, and the same for %in in %rd11.
inline std::string own_places(int out_bytes, int in_bytes) {
    return "mul.wide.u32 %rd10, %thread, " + std::to_string(out_bytes) +
           "; add.u64 %rd10, %rd10, %out; mul.wide.u32 %rd11, %thread, " + std::to_string(in_bytes) +
           "; add.u64 %rd11, %rd11, %in;\n";
}

}  // namespace gpupool::softgpu_test
