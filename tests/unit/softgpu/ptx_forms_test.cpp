// Rare PTX: forms that only certain nvcc options or other compilers generate, and PTX that must be refused.
#include "tests/unit/softgpu/ptx_kernel.h"

namespace gpupool::softgpu_test {
namespace {

class PtxFormsTest : public PtxKernelTest {
  protected:
    static std::string header(const char* target = "sm_90") {
        return std::string(".version 8.5\n.target ") + target + "\n.address_size 64\n";
    }

    // The result of cuModuleLoadDataEx, with the error log in `log`.
    CUresult load(const std::string& text, CUmodule* module = nullptr) {
        char said[1024] = "";
        CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
        void* values[] = {said, reinterpret_cast<void*>(sizeof said)};
        CUmodule loaded = nullptr;
        const CUresult result = CALL(cuModuleLoadDataEx)(&loaded, text.c_str(), 2, options, values);
        log = said;
        if (module != nullptr) {
            *module = loaded;
        }
        return result;
    }

    // Runs the entry `k(.param .u64 o)` of a module and returns the `count` values that it wrote to `o`.
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

// A function may write to its parameters through their addresses, and recurse; each call has its own copies.
TEST_F(PtxFormsTest, FunctionParametersHaveLocalAddresses) {
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
    for (unsigned t = 0; t < 64; ++t) {
        ASSERT_EQ((t + 3) * 1000 + (t + 6) * 1000 + t + 9, out[t]) << t;
    }
}

// One type with several names, wherever variables are declared.
TEST_F(PtxFormsTest, DeclarationsOfSeveralVariables) {
    const auto out = run_module<unsigned>(
        header() +
            ".global .align 8 .v2 .u32 pair = {1, 2}, pairs[2] = {3, 4, 5, 6};\n"
            ".func (.param .b32 r) difference(.param .b32 a, .param .b32 b) { .reg .b32 %r<3>;\n"
            "ld.param.b32 %r0, [a]; ld.param.b32 %r1, [b]; sub.u32 %r2, %r0, %r1; st.param.b32 [r], %r2; ret; }\n"
            ".visible .entry k(.param .u64 o) { .shared .b32 near, far[2]; .local .b32 low, high; .reg .b64 %out; .reg "
            ".b32 %r<9>;\n"
            ".param .b32 x, y, z; ld.param.u64 %out, [o];\n"
            "st.shared.u32 [near], 10; st.shared.u32 [far], 20; st.shared.u32 [far+4], 30; st.local.u32 [low], 40; "
            "st.local.u32 [high], 50;\n"
            "ld.shared.u32 %r0, [near]; ld.shared.u32 %r1, [far+4]; ld.local.u32 %r2, [low]; ld.local.u32 %r3, "
            "[high];\n"
            "ld.global.u32 %r4, [pair+4]; ld.global.u32 %r5, [pairs+12];\n"
            "st.param.b32 [x], %r3; st.param.b32 [y], %r1; call (z), difference, (x, y); ld.param.b32 %r6, [z];\n"
            "st.global.v4.u32 [%out], {%r0, %r1, %r2, %r3}; st.global.v2.u32 [%out+16], {%r4, %r5}; st.global.u32 "
            "[%out+24], %r6;\n"
            "ret; }\n",
        1, 7);
    EXPECT_EQ((std::vector<unsigned>{10, 30, 40, 50, 2, 6, 20}), out);
}

// libcudart asks for them before it has a context.
TEST_F(PtxFormsTest, ManagedVariablesExistWithoutAContext) {
    const std::string text =
        header() +
        ".visible .global .attribute(.managed) .align 4 .u32 word = 5; .visible .global .u32 other;\n"
        ".visible .entry k() { .reg .b32 %r<2>; ld.global.u32 %r0, [word]; add.u32 %r0, %r0, 1; st.global.u32 [word], "
        "%r0; ret; }\n";
    CUcontext context = nullptr;
    OK(CALL(cuCtxPopCurrent_v2)(&context));
    CUlibrary library = nullptr;
    CUdeviceptr word = 0;
    std::size_t bytes = 0;
    OK(CALL(cuLibraryLoadData)(&library, text.c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0));
    OK(CALL(cuLibraryGetManaged)(&word, &bytes, library, "word"));
    EXPECT_EQ(4U, bytes);
    EXPECT_EQ(CUDA_ERROR_NOT_FOUND, CALL(cuLibraryGetManaged)(&word, &bytes, library, "other"));
    auto* const value = reinterpret_cast<volatile unsigned*>(word);
    EXPECT_EQ(5U, *value);
    *value = 7;
    OK(CALL(cuCtxPushCurrent_v2)(context));
    CUkernel kernel = nullptr;
    OK(CALL(cuLibraryGetKernel)(&kernel, library, "k"));
    OK(CALL(cuLaunchKernel)(reinterpret_cast<CUfunction>(kernel), 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr));
    OK(CALL(cuCtxSynchronize)());
    EXPECT_EQ(8U, *value);
    OK(CALL(cuLibraryUnload)(library));
}

// sub.cc sets the carry flag when it does not borrow, and addc reads that flag.
TEST_F(PtxFormsTest, SubtractionsAndAdditionsShareTheCarry) {
    const auto out = run_module<unsigned>(
        header() +
            ".visible .entry k(.param .u64 o) { .reg .b32 %r<6>; .reg .b64 %d<4>; ld.param.u64 %d1, [o]; mov.u32 %r1, "
            "%tid.x;\n"
            "mul.wide.u32 %d2, %r1, 16; add.u64 %d1, %d1, %d2;\n"
            "sub.cc.u32 %r2, %r1, 2; addc.u32 %r2, 0, 0; sub.cc.u32 %r3, %r1, 2; subc.u32 %r3, 0, 0;\n"
            "add.cc.u32 %r4, %r1, -2; subc.u32 %r4, 0, 0; sub.cc.u32 %r5, %r1, 2; madc.hi.u32 %r5, 0, 0, 0;\n"
            "st.global.v4.u32 [%d1], {%r2, %r3, %r4, %r5}; ret; }\n",
        4, 16);
    for (unsigned t = 0; t < 4; ++t) {
        const unsigned carry = t >= 2 ? 1 : 0;
        EXPECT_EQ((std::vector<unsigned>{carry, carry - 1, carry - 1, carry}),
                  std::vector<unsigned>(out.begin() + 4 * t, out.begin() + 4 * t + 4))
            << t;
    }
}

// PTX that CUDA 4 generated for GPUs before compute capability 2.0; its programs still pass it to drivers.
TEST_F(PtxFormsTest, MultiplicationsAndAdditionsFromBeforeFermi) {
    const auto out = run_module<float>(
        ".version 1.4\n.target sm_10, map_f64_to_f32\n.entry k(.param .u64 o) { .reg .f32 %f<5>; .reg .u64 %out;\n"
        "ld.param.u64 %out, [o]; mov.f32 %f1, 0f3f800001; mov.f32 %f2, 0fbf800002;\n"
        "mad.f32 %f3, %f1, %f1, %f2; st.global.f32 [%out], %f3; mad.sat.f32 %f3, %f1, %f1, %f1;\n"
        "st.global.f32 [%out+4], %f3; exit; }\n",
        1, 2);
    EXPECT_EQ((std::vector<float>{0x1p-46F, 1}), out);
}

// Generated to initialize packed structures that contain pointers.
TEST_F(PtxFormsTest, BytesOfAddressesInInitialValues) {
    const auto out = run_module<unsigned long long>(
        header() +
            ".global .u32 x[4] = {1, 2, 3, 4};\n"
            ".global .align 1 .b8 packed[11] = {120, 0xFF(generic(x)+8), 0xFF00(generic(x)+8), 0xFF0000(generic(x)+8), "
            "0xFF000000(generic(x)+8), 0xFF00000000(generic(x)+8), 0xFF0000000000(generic(x)+8), "
            "0xFF000000000000(generic(x)+8), 0xFF00000000000000(generic(x)+8), 5, 0};\n"
            ".global .u32 wide[2] = {0xFF00(x), 7};\n"
            ".visible .entry k(.param .u64 o) { .reg .b64 %d<9>; .reg .b32 %r<4>; .reg .pred %p; ld.param.u64 %d1, "
            "[o];\n"
            "mov.u64 %d2, 0; mov.u32 %r1, 8; mov.u64 %d3, packed;\n"
            "AGAIN: cvt.u64.u32 %d4, %r1; add.u64 %d4, %d4, %d3; ld.global.u8 %d5, [%d4]; shl.b64 %d2, %d2, 8;\n"
            "or.b64 %d2, %d2, %d5; sub.u32 %r1, %r1, 1; setp.ne.u32 %p, %r1, 0; @%p bra AGAIN;\n"
            "ld.u32 %d6, [%d2]; st.global.u64 [%d1], %d6; ld.global.u8 %d6, [packed+9]; st.global.u64 [%d1+8], %d6;\n"
            "mov.u64 %d6, x; shr.u64 %d6, %d6, 8; and.b64 %d6, %d6, 255; ld.global.u32 %d5, [wide];\n"
            "sub.u64 %d6, %d6, %d5; st.global.u64 [%d1+16], %d6; ret; }\n",
        1, 3);
    EXPECT_EQ((std::vector<unsigned long long>{3, 5, 0}), out);
}

TEST_F(PtxFormsTest, PtxThatPtxasRefusesIsRefused) {
    const std::string kernel = ".visible .entry k(.param .u64 o) { ret; }\n";
    EXPECT_EQ(CUDA_ERROR_INVALID_PTX, load(header() + ".visible .global .u64 g[2] = {g, nosuch};\n" + kernel));
    EXPECT_NE(std::string::npos, log.find("nosuch")) << log;
    EXPECT_NE(std::string::npos, log.find("line 4")) << log;
    EXPECT_EQ(CUDA_ERROR_INVALID_PTX, load(header() + ".global .u8 g[2] = {0xFF0(g), 0};\n" + kernel));
    EXPECT_EQ(CUDA_SUCCESS, load(header() + ".const .u8 a[65535]; .const .u8 b;\n" + kernel)) << log;
    EXPECT_EQ(CUDA_ERROR_INVALID_PTX, load(header() + ".const .u8 a[65535]; .const .u16 b;\n" + kernel));
    const auto with_parameters = [](int bytes) {
        return ".visible .entry k(.param .b8 p[" + std::to_string(bytes) + "]) { ret; }\n";
    };
    EXPECT_EQ(CUDA_SUCCESS, load(header() + with_parameters(32764))) << log;
    EXPECT_EQ(CUDA_ERROR_INVALID_PTX, load(header() + with_parameters(32765)));
    EXPECT_EQ(CUDA_SUCCESS, load(header("sm_60") + with_parameters(4352))) << log;
    EXPECT_EQ(CUDA_ERROR_INVALID_PTX, load(header("sm_60") + with_parameters(4353)));
}

// nvcc generates these for the DPX intrinsics.
TEST_F(PtxFormsTest, ClampedMinimumAndMaximum) {
    const auto out = run<int>(
        "ld.global.v2.u32 {%r0,%r1}, [%in]; min.s32.relu %r2, %r0, %r1; max.s32.relu %r3, %r0, %r0;\n"
        "max.s32.relu %r4, %r0, %r1; min.s32.relu %r5, %r1, 9;\n"
        "st.global.v4.u32 [%out], {%r2,%r3,%r4,%r5};",
        1, 4, std::vector<int>{-5, 7});
    EXPECT_EQ((std::vector<int>{0, 0, 7, 7}), out);
}

// Without .sync the members are the active lanes: here the even ones.
TEST_F(PtxFormsTest, WarpInstructionsFromBeforeVolta) {
    const std::string text =
        ".visible .entry k(.param .u64 o) { .reg .b64 %d<4>; .reg .b32 %r<9>; .reg .pred %p<9>;\n"
        "ld.param.u64 %d1, [o]; mov.u32 %r1, %laneid; mul.wide.u32 %d2, %r1, 16; add.u64 %d1, %d1, %d2;\n"
        "and.b32 %r2, %r1, 1; setp.ne.u32 %p1, %r2, 0; @%p1 bra DONE;\n"
        "setp.gt.u32 %p2, %r1, 3; vote.ballot.b32 %r3, %p2; shfl.down.b32 %r4|%p3, %r1, 2, 31;\n"
        "vote.any.pred %p4, %p2; vote.all.pred %p5, %p2; vote.uni.pred %p6, %p2; vote.all.pred %p7, !%p1;\n"
        "selp.b32 %r5, 1, 0, %p4; @%p5 or.b32 %r5, %r5, 2; @%p6 or.b32 %r5, %r5, 4; @%p7 or.b32 %r5, %r5, 8;\n"
        "selp.b32 %r6, 1, 0, %p3; st.global.v4.u32 [%d1], {%r3,%r4,%r5,%r6};\nDONE: ret; }\n";
    const auto out = run_module<unsigned>(header("sm_60") + text, 32, 128);
    for (unsigned lane = 0; lane < 32; ++lane) {
        const bool there = lane % 2 == 0;
        ASSERT_EQ(there ? 0x55555550U : 0U, out[lane * 4]) << lane;
        ASSERT_EQ(!there ? 0 : lane == 30 ? 30 : lane + 2, out[lane * 4 + 1]) << lane;
        ASSERT_EQ(there ? 9U : 0U, out[lane * 4 + 2]) << lane;
        ASSERT_EQ(there && lane != 30 ? 1U : 0U, out[lane * 4 + 3]) << lane;
    }
    EXPECT_NE(CUDA_SUCCESS, load(header() + text));
}

TEST_F(PtxFormsTest, ConstantExpressions) {
    const auto out = run_module<long long>(
        header() +
            ".global .s64 table[7] = {(1<<3)+4, -(3-1)*~0, 5>3?7:2, !3, (.s64)0xFFFFFFFFFFFFFFFF >> 60, WARP_SZ*2, "
            "7/2*-1};\n"
            ".global .f32 reals[2] = {1.5*2.0, -2.5};\n"
            ".visible .entry k(.param .u64 o) { .reg .b64 %d<4>; .reg .b32 %r<4>; .reg .f32 %f; .reg .pred %p;\n"
            "ld.param.u64 %d1, [o]; mov.u32 %r1, 0; mov.u64 %d3, table;\n"
            "AGAIN: mul.wide.u32 %d2, %r1, 8; add.u64 %d2, %d2, %d3; ld.global.u64 %d2, [%d2];\n"
            "st.global.u64 [%d1], %d2; add.u64 %d1, %d1, (1<<3); add.u32 %r1, %r1, 1; setp.lt.u32 %p, %r1, 14/2;\n"
            "@%p bra AGAIN; mov.u64 %d2, table+(4*2); ld.global.u64 %d2, [%d2]; st.global.u64 [%d1+2*4-8], %d2;\n"
            "ld.global.f32 %f, [reals]; cvt.rzi.s64.f32 %d2, %f; st.global.u64 [%d1+(1<<3)], %d2;\n"
            "mov.u64 %d2, 1<2 && 2>3 || 8 % 3 == 2; st.global.u64 [%d1+16], %d2; ret; }\n",
        1, 10);
    EXPECT_EQ((std::vector<long long>{12, 2, 7, 0, -1, 64, -3, 2, 3, 1}), out);
    EXPECT_EQ(CUDA_ERROR_INVALID_PTX, load(header() + ".global .u32 x = 1/0;\n.visible .entry k() { ret; }\n"));
    const std::string deep(100000, '(');
    EXPECT_EQ(CUDA_ERROR_INVALID_PTX,
              load(header() + ".global .u32 x = " + deep + ";\n.visible .entry k() { ret; }\n"));
    const std::string signs(100000, '~');
    EXPECT_EQ(CUDA_ERROR_INVALID_PTX,
              load(header() + ".global .u32 x = " + signs + "1;\n.visible .entry k() { ret; }\n"));
}

// ptxas accepts an instruction's modifiers in more than one order.
TEST_F(PtxFormsTest, ModifiersInAnotherOrder) {
    const CUdeviceptr sums = upload(std::vector<float>{1, 2, 3, 4});
    OK(start(compile("mov.f32 %f1, 0f3F800000; mov.f32 %f2, 0f40000000;\n"
                     "red.global.v2.f32.add [%out], {%f1,%f2};\n"
                     "atom.global.v2.f32.add {%f3,%f4}, [%out+8], {%f1,%f1};\n"),
             {1}, {8}, sums, sums));
    EXPECT_EQ((std::vector<float>{9, 18, 11, 12}), download<float>(sums, 4));
    const auto out = run<unsigned>(
        "mov.b32 %r0, 0x40003C00; mov.u32 %r9, 0; st.global.u32 [%out], %r9;\n"
        "atom.global.v4.f16x2.add.noftz {%r1,%r2,%r3,%r4}, [%out], {%r0,%r0,%r0,%r0};\n"
        "mov.b16 %h0, 0x3F80; mov.b16 %h1, 0x4000; set.u32.bf16.lt %r1, %h0, %h1; st.global.u32 [%out+16], %r1;\n"
        "setp.u32.lt %p1, %r9, %r0; selp.b32 %r1, 1, 0, %p1; st.global.u32 [%out+20], %r1;\n"
        ".reg .b8 %b<4>; mov.b16 %h2, 0x1234; mov.b16 {%b0,%b1}, %h2; mov.b16 %h3, {%b1,%b0}; cvt.u32.u16 %r1, %h3;\n"
        "st.global.u32 [%out+24], %r1;",
        1, 7, std::vector<int>(1));
    EXPECT_EQ((std::vector<unsigned>{0x40003C00, 0x40003C00, 0x40003C00, 0x40003C00, 0xFFFFFFFF, 1, 0x3412}), out);
}

// The width of a malformed format is bounded.
TEST_F(PtxFormsTest, PrintfWidthIsBounded) {
    const std::string text =
        ".global .b8 format[29] = "
        "{37,57,57,57,57,57,57,57,57,57,57,57,57,100,37,46,57,57,57,57,57,57,57,57,57,102,10,0};\n"
        ".extern .func (.param .b32 r) vprintf(.param .b64 a, .param .b64 b);\n"
        ".visible .entry k(.param .u64 o) { .local .align 8 .b8 values[16]; .reg .b64 %d<3>;\n"
        ".param .b32 r; .param .b64 a; .param .b64 b; mov.u64 %d1, format; st.param.b64 [a], %d1;\n"
        "mov.u64 %d2, values; st.local.u64 [%d2], 1; st.local.u64 [%d2+8], 0; cvta.local.u64 %d2, %d2;\n"
        "st.param.b64 [b], %d2; call (r), vprintf, (a, b); ret; }\n";
    testing::internal::CaptureStdout();
    run_module<unsigned>(header() + text, 1, 1);
    const std::string said = testing::internal::GetCapturedStdout();
    EXPECT_GE(said.size(), 65536U);
    EXPECT_LE(said.size(), 2 * 65536U + 64);
}

// 32 lanes add to a pair of counters, each in one 128-bit atomic operation.
TEST_F(PtxFormsTest, RegistersAndAtomicsOf128Bits) {
    const auto out = run_module<unsigned long long>(
        header() +
            ".visible .entry k(.param .u64 o) { .reg .b64 %d<9>; .reg .b128 %q<6>; .reg .pred %p<3>;\n"
            "ld.param.u64 %d1, [o]; ld.global.b128 %q1, [%d1];\n"
            "AGAIN: mov.b128 {%d2,%d3}, %q1; add.u64 %d4, %d2, 1; add.u64 %d5, %d3, 3; mov.b128 %q2, {%d4,%d5};\n"
            "atom.acq_rel.gpu.global.cas.b128 %q3, [%d1], %q1, %q2; mov.b128 {%d4,%d5}, %q3; mov.b128 %q1, %q3;\n"
            "setp.ne.u64 %p1, %d2, %d4; @%p1 bra AGAIN;\n"
            "setp.ne.u64 %p1, %d2, 31; @%p1 bra DONE; mov.b128 %q4, {%d2,7}; st.global.b128 [%d1+16], %q4;\n"
            "mov.b128 %q4, {8,9}; atom.global.exch.b128 %q5, [%d1+16], %q4; st.global.b128 [%d1+32], %q5;\n"
            "DONE: ret; }\n",
        32, 6);
    EXPECT_EQ((std::vector<unsigned long long>{32, 96, 8, 9, 31, 7}), out);
    EXPECT_NE(CUDA_SUCCESS, load(header() + ".visible .entry k() { .reg .b128 %q<3>; add.u64 %q1, %q2, 1; ret; }\n"));
}

TEST_F(PtxFormsTest, TrapIsReportedAsTheProgramsOwn) {
    const CUdeviceptr out = upload(std::vector<unsigned>(1));
    testing::internal::CaptureStderr();
    EXPECT_NE(CUDA_SUCCESS, start(compile("trap;"), {1}, {1}, out, out));
    const std::string said = testing::internal::GetCapturedStderr();
    EXPECT_NE(std::string::npos, said.find(": the program executed trap\n")) << said;
    EXPECT_EQ(std::string::npos, said.find("address")) << said;
}

TEST_F(PtxFormsTest, DeeplyNestedBracesAreRefused) {
    const std::string entry = ".visible .entry k() { .reg .b32 %r<3>; mov.b32 %r1, ";
    for (const char bracket : {'{', '[', '('}) {
        const std::string deep(1000000, bracket);
        EXPECT_EQ(CUDA_ERROR_INVALID_PTX, load(header() + entry + deep + "; ret; }\n")) << bracket;
        EXPECT_EQ(CUDA_ERROR_INVALID_PTX, load(header() + ".global .u32 x[2] = " + deep + ";\n")) << bracket;
    }
}

}  // namespace
}  // namespace gpupool::softgpu_test
