// PTX that is rare: forms that only some of nvcc's options or other compilers make, and what has to be refused.
#include "tests/unit/softgpu/ptx_kernel.h"

namespace gpupool::softgpu_test {
namespace {

class PtxFormsTest : public PtxKernelTest {
  protected:
    static std::string header(const char* target = "sm_90") {
        return std::string(".version 8.5\n.target ") + target + "\n.address_size 64\n";
    }

    // What cuModuleLoadDataEx answers, and the error log in `log`.
    CUresult load(const std::string& text, CUmodule* module = nullptr) {
        char said[1024] = "";
        CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
        void* values[] = {said, reinterpret_cast<void*>(sizeof said)};
        CUmodule loaded = nullptr;
        const CUresult result = CALL(cuModuleLoadDataEx)(&loaded, text.c_str(), 2, options, values);
        log = said;
        if (module != nullptr) *module = loaded;
        return result;
    }

    // What the entry `k(.param .u64 o)` of a module leaves in `count` values behind `o`.
    template <class T>
    std::vector<T> run_module(const std::string& text, unsigned threads, std::size_t count) {
        CUmodule module = nullptr;
        EXPECT_EQ(CUDA_SUCCESS, load(text, &module)) << log;
        CUfunction function = nullptr;
        EXPECT_EQ(CUDA_SUCCESS, CALL(cuModuleGetFunction)(&function, module, "k"));
        const CUdeviceptr out = upload(std::vector<T>(count));
        EXPECT_EQ(CUDA_SUCCESS, start(function, {1}, {threads}, out, 0));
        return download<T>(out, count);
    }

    std::string log;
};

// A function may write to its parameters through their address, and recurse: each call has its own copies.
TEST_F(PtxFormsTest, AFunctionsParametersHaveLocalAddresses) {
    const auto out = run_module<unsigned>(
        header() +
            ".func (.param .align 8 .b8 result[8]) f(.param .align 8 .b8 p[16], .param .b32 depth) {\n"
            ".reg .b64 %rd<8>; .reg .b32 %r<9>; .reg .pred %again; .local .align 8 .b8 own[8];\n"
            "mov.b64 %rd1, p; cvta.local.u64 %rd2, %rd1; cvta.to.local.u64 %rd3, %rd2; mov.b64 %rd4, result;\n"
            "mov.b64 %rd5, own; st.local.u32 [%rd5+4], 500;\n"
            "ld.param.u32 %r1, [depth]; ld.local.u32 %r2, [%rd3+4]; ld.u32 %r3, [%rd2+8]; add.u32 %r2, %r2, %r3;\n"
            "st.local.u32 [%rd3+4], %r2; setp.ne.u32 %again, %r1, 0; ld.param.u32 %r4, [p+4];\n"
            "@!%again bra DONE;\n"
            "{ .param .align 8 .b8 q[16]; .param .b32 d; .param .align 8 .b8 back[8]; sub.u32 %r5, %r1, 1;\n"
            "st.param.u32 [q+4], %r4; st.param.u32 [q+8], %r3; st.param.b32 [d], %r5;\n"
            "call (back), f, (q, d); ld.param.u32 %r4, [back+4]; }\n"
            "ld.param.u32 %r6, [%rd1+4]; mad.lo.u32 %r4, %r6, 1000, %r4;\n"
            "DONE:\nst.local.u32 [%rd4+4], %r4; ret; }\n"
            ".visible .entry k(.param .u64 o) { .reg .b64 %d<4>; .reg .b32 %r<4>;\n"
            ".param .align 8 .b8 a[16]; .param .b32 depth; .param .align 8 .b8 back[8];\n"
            "mov.u32 %r1, %tid.x; st.param.b32 [a+4], %r1; st.param.b32 [a+8], 3; st.param.b32 [depth], 2;\n"
            "call (back), f, (a, depth); ld.param.b32 %r2, [back+4]; ld.param.u64 %d1, [o];\n"
            "mul.wide.u32 %d2, %r1, 4; add.u64 %d1, %d1, %d2; st.global.u32 [%d1], %r2; ret; }\n",
        64, 64);
    for (unsigned t = 0; t < 64; ++t) ASSERT_EQ((t + 3) * 1000 + (t + 6) * 1000 + t + 9, out[t]) << t;
}

}  // namespace
}  // namespace gpupool::softgpu_test
