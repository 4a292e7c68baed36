// Instructions that few kernels use: asynchronous copies, mbarriers, clusters, packed values, alloca; and refused ones.
#include <algorithm>

#include "tests/unit/softgpu/ptx_kernel.h"

namespace gpupool::softgpu_test {
namespace {

using PtxBreadthTest = PtxKernelTest;

TEST_F(PtxBreadthTest, CpAsyncCopiesAndFillsWithZero) {
    const auto out = run<unsigned>(
        ".shared .align 16 .b8 tile[64];\nmov.u32 %r1, tile; mov.u64 %rd1, -1;\n"
        "st.shared.u64 [%r1+24], %rd1; st.shared.u64 [%r1+32], %rd1;\n"
        "cp.async.cg.shared.global [%r1], [%in], 16;\nmov.u32 %r2, 8;\n"
        "cp.async.cg.shared.global [%r1+16], [%in+16], 16, %r2;\nsetp.eq.u32 %p1, %thread, 0;\n"
        "cp.async.ca.shared.global [%r1+32], [%in], 4, %p1;\n"
        "cp.async.commit_group; cp.async.wait_group 0;\n"
        "ld.shared.v4.u32 {%r3,%r4,%r5,%r6}, [%r1]; st.global.v4.u32 [%out], {%r3,%r4,%r5,%r6};\n"
        "ld.shared.v4.u32 {%r3,%r4,%r5,%r6}, [%r1+16]; st.global.v4.u32 [%out+16], {%r3,%r4,%r5,%r6};\n"
        "ld.shared.u32 %r3, [%r1+32]; st.global.u32 [%out+32], %r3;",
        1, 9, std::vector<unsigned>{1, 2, 3, 4, 5, 6, 7, 8});
    EXPECT_EQ((std::vector<unsigned>{1, 2, 3, 4, 5, 6, 0, 0, 0}), out);
}

// Warp 0 produces and warp 1 waits for the phase, by state and by parity; a bulk copy's bytes count.
TEST_F(PtxBreadthTest, MbarriersCountArrivalsAndBytes) {
    const auto out = run<unsigned>(
        ".shared .align 16 .b8 tile[16]; .shared .align 8 .b8 barrier[8];\n"
        "mov.u32 %r1, tile; mov.u32 %r2, barrier; setp.ne.u32 %p1, %thread, 0;\n"
        "@%p1 bra READY;\nmbarrier.init.shared.b64 [%r2], 33;\nREADY:\nbar.sync 0;\n"
        "setp.lt.u32 %p2, %thread, 32; @%p2 bra PRODUCE;\n"
        "setp.ne.u32 %p3, %thread, 32; @%p3 bra WAIT;\n"
        "mov.u32 %r3, 16;\nmbarrier.arrive.expect_tx.shared.b64 %rd1, [%r2], %r3;\n"
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%in], %r3, [%r2];\n"
        "WAIT:\nmbarrier.try_wait.parity.shared.b64 %p4, [%r2], 0;\n@!%p4 bra WAIT;\n"
        "ld.shared.u32 %r4, [%r1+12]; mul.wide.u32 %rd3, %thread, 4; add.u64 %rd3, %rd3, %out;\n"
        "st.global.u32 [%rd3], %r4; bra DONE;\n"
        "PRODUCE:\nnanosleep.u32 10;\nmbarrier.arrive.shared.b64 %rd1, [%r2];\n"
        "AGAIN:\nmbarrier.test_wait.shared.b64 %p4, [%r2], %rd1;\n@!%p4 bra AGAIN;\n"
        "mul.wide.u32 %rd3, %thread, 4; add.u64 %rd3, %rd3, %out; st.global.u32 [%rd3], 7;\nDONE:",
        64, 64, std::vector<unsigned>{1, 2, 3, 4});
    std::vector<unsigned> expected(64, 7);
    std::fill(expected.begin() + 32, expected.end(), 4);
    EXPECT_EQ(expected, out);
}

// Reductions whose completion an mbarrier counts, and bulk reductions.
TEST_F(PtxBreadthTest, AsynchronousReductions) {
    const auto out = run<unsigned>(
        ".shared .align 16 .b8 mine[16], sum[16]; .shared .align 8 .b8 barrier[8];\n"
        "mov.u32 %r1, sum; mov.u32 %r2, barrier; setp.ne.u32 %p1, %thread, 0;\n"
        "@%p1 bra READY;\nmbarrier.init.shared.b64 [%r2], 1;\nst.shared.v4.u32 [%r1], {100, 200, 7, 3};\n"
        "mbarrier.arrive.expect_tx.shared.b64 %rd1, [%r2], 256;\nREADY:\nbar.sync 0;\n"
        "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%r1], %thread, [%r2];\n"
        "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.max.s32 [%r1+8], %thread, [%r2];\n"
        "WAIT:\nmbarrier.try_wait.parity.shared.b64 %p4, [%r2], 0;\n@!%p4 bra WAIT;\n@%p1 bra DONE;\n"
        "mov.u32 %r5, mine; st.shared.v4.u32 [%r5], {1, 2, 3, 4};\n"
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%out], [%r1], 16;\n"
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.min.s32 [%out+16], [%r5], 16;\n"
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.noftz.f16 [%out+32], [%r5], 16;\n"
        "mbarrier.arrive.expect_tx.shared.b64 %rd1, [%r2], 16;\n"
        "cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.xor.b32 [%r5], [%r1], 16, "
        "[%r2];\n"
        "AGAIN:\nmbarrier.try_wait.parity.shared.b64 %p4, [%r2], 1;\n@!%p4 bra AGAIN;\n"
        "cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;\n"
        "ld.shared.v2.u32 {%r6, %r7}, [%r5]; st.global.v2.u32 [%out+48], {%r6, %r7};\nDONE:",
        32, 14, std::vector<unsigned>{1});
    // 100 + 0 + ... + 31; the maximum of 7 and the threads; zeros with additions and a minimum.
    EXPECT_EQ((std::vector<unsigned>{596, 200, 31, 3, 0, 0, 0, 0, 1, 2, 3, 4, 596 ^ 1, 200 ^ 2}), out);
}

TEST_F(PtxBreadthTest, ClusterBlocksReadEachOthersSharedMemory) {
    const CUfunction function = compile(
        ".shared .align 4 .b8 place[4];\nmov.u32 %r1, place; mov.u32 %r2, %ctaid.x; add.u32 %r3, %r2, 50;\n"
        "st.shared.u32 [%r1], %r3;\nbarrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;\n"
        "mov.u32 %r4, %cluster_ctarank; mov.u32 %r5, %cluster_nctarank; add.u32 %r4, %r4, 1; rem.u32 %r4, %r4, %r5;\n"
        "mapa.shared::cluster.u32 %r6, %r1, %r4; ld.shared::cluster.u32 %r7, [%r6];\n"
        "mul.wide.u32 %rd1, %r2, 4; add.u64 %rd1, %rd1, %out; st.global.u32 [%rd1], %r7;\n"
        "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;",
        ".explicitcluster .reqnctapercluster 4, 1, 1");
    const CUdeviceptr out = upload(std::vector<unsigned>(8));
    OK(start(function, {8}, {32}, out, out));
    EXPECT_EQ((std::vector<unsigned>{51, 52, 53, 50, 55, 56, 57, 54}), download<unsigned>(out, 8));
    EXPECT_EQ(CUDA_ERROR_INVALID_CLUSTER_SIZE, start(function, {6}, {32}, out, out));
}

// Even and odd lanes are the members of two sets at the same instruction.
TEST_F(PtxBreadthTest, LaneSetsAtOneInstructionStaySeparate) {
    const auto out = run<unsigned>(
        own_places(8, 0) +
            "and.b32 %r1, %thread, 1; setp.eq.u32 %p1, %r1, 0; selp.b32 %r2, 0x55555555, 0xAAAAAAAA, %p1;\n"
            "redux.sync.max.u32 %r3, %thread, %r2; shfl.sync.idx.b32 %r4, %thread, 0, 31, %r2;\n"
            "vote.sync.ballot.b32 %r5, %p1, %r2; st.global.u32 [%rd10], %r3; st.global.u32 [%rd10+4], %r5;",
        32, 64, std::vector<int>(1));
    for (unsigned lane = 0; lane < 32; ++lane) {
        ASSERT_EQ(30 + lane % 2, out[lane * 2]) << lane;
        ASSERT_EQ(lane % 2 == 0 ? 0x55555555U : 0U, out[lane * 2 + 1]) << lane;
    }
}

TEST_F(PtxBreadthTest, PackedAndVideoInstructions) {
    const auto out = run<unsigned>(
        "ld.global.v4.u32 {%r0,%r1,%r2,%r3}, [%in];\n"
        "vabsdiff4.u32.u32.u32.add %r4, %r0, %r1, %r2; st.global.u32 [%out], %r4;\n"
        "vadd.s32.s32.s32.sat %r4, %r3, %r0.b3; st.global.u32 [%out+4], %r4;\n"
        "vmax2.s32.s32.s32 %r4, %r0, %r1, %r2; st.global.u32 [%out+8], %r4;\n"
        "max.s16x2 %r4, %r0, %r1; st.global.u32 [%out+12], %r4;\n"
        "lop3.and.b32 %r4|%p0, %r0, %r1, %r2, 0x80, 1; selp.b32 %r5, 1, 0, %p0; st.global.u32 [%out+16], %r5;\n"
        "cvt.pack.sat.u8.s32.b32 %r4, %r3, -5, 0x1234; st.global.u32 [%out+20], %r4;",
        1, 6, std::vector<unsigned>{0x7F028003, 0x01FF0004, 10, 0x7FFFFFF0});
    const auto greatest = [](unsigned a, unsigned b) {
        unsigned result = 0;
        for (int n = 0; n < 2; ++n) {
            const auto x = static_cast<short>(a >> 16 * n), y = static_cast<short>(b >> 16 * n);
            result |= static_cast<unsigned>(static_cast<unsigned short>(std::max(x, y))) << 16 * n;
        }
        return result;
    };
    // Bytes: |7F-01| + |02-FF| + |80-00| + |03-04| + 10.
    EXPECT_EQ(0x7EU + 0xFD + 0x80 + 1 + 10, out[0]);
    EXPECT_EQ(0x7FFFFFFFU, out[1]);
    EXPECT_EQ(greatest(0x7F028003, 0x01FF0004), out[2]);
    EXPECT_EQ(greatest(0x7F028003, 0x01FF0004), out[3]);
    EXPECT_EQ((0x7F028003U & 0x01FF0004U & 10U) != 0 ? 1U : 0U, out[4]);
    EXPECT_EQ(0x1234FF00U, out[5]);
}

// Results measured on an H200 where PTX leaves a choice: the bits of NaNs, and .ftz when a value rounds to the smallest
// normal number.
TEST_F(PtxBreadthTest, UnspecifiedResultsMatchAnH200) {
    const struct {
        const char* instruction;  // writes its result to %rd0
        unsigned long long expected;
    } rows[] = {
        {"add.rn.f64 %rd0, 0dfff3a27ae208db6e, 0dffff8e7f83bd3f30;", 0xffff8e7f83bd3f30},
        {"sub.rp.f64 %rd0, 0dfff9967180bcc467, 0d7ff0000000000001;", 0x7ff8000000000001},
        {"mul.rn.f64 %rd0, 0dfff3946d3370ff6b, 0d7ff8000000000000;", 0x7ff8000000000000},
        {"fma.rz.f64 %rd0, 0dfffe15ac2af1d7e0, 0d21160a0c8e120000, 0d7ff0000000000001;", 0x7ff8000000000001},
        {"min.f64 %rd0, 0dfff0000000000001, 0d7ff0000000000001;", 0x7ff8000000000001},
        {"neg.f64 %rd0, 0dfff0000000000001;", 0xfff8000000000001},
        {"neg.f32 %r0, 0fffc00000; mov.b64 %rd0, {%r0, 0};", 0x7fffffff},
        {"mov.b16 %h0, 0x7c01; neg.f16 %h0, %h0; cvt.u64.u16 %rd0, %h0;", 0x7fff},
        {"cvt.rz.f16.f64 %h0, 0d7ff0404912a6160b; cvt.u64.u16 %rd0, %h0;", 0x7e10},
        {"cvt.rm.f32.f64 %r0, 0dfff0000000000001; mov.b64 %rd0, {%r0, 0};", 0xffc00000},
        {"cvt.ftz.f64.f32 %rd0, 0fffeff52c;", 0x7fffffffe0000000},
        {"mov.b16 %h0, 0x7f81; cvt.f32.bf16 %r0, %h0; mov.b64 %rd0, {%r0, 0};", 0x7f810000},
        {"cvt.rni.s32.f64 %r0, 0dfff8000000000000; mov.b64 %rd0, {%r0, 0};", 0x80000000},
        {"fma.rp.f64 %rd0, 0d3f964fef24a99e58, 0d7ff5008625b2c31e, 0d7ff8000000000000;", 0x7ffd008625b2c31e},
        {"mad.rn.f64 %rd0, 0d4037800000000000, 0d7ff37df30cf70842, 0dfffa19f2f79c778f;", 0x7ffb7df30cf70842},
        {"rcp.approx.ftz.f64 %rd0, 0d7ff0000000000001;", 0},
        {"rsqrt.approx.ftz.f64 %rd0, 0d7ff0000000000001;", 0},
        {"rcp.approx.ftz.f64 %rd0, 0d7ff0000100000000;", 0x7fffffff00000000},
        {"fma.rp.ftz.f32 %r0, 0f00800000, 0f80800000, 0f00800000; mov.b64 %rd0, {%r0, 0};", 0x00800000},
        {"mov.b16 %h0, 0x0400; mov.b16 %h1, 0x88b7; fma.rn.ftz.f16 %h0, %h0, %h1, %h0; cvt.u64.u16 %rd0, %h0;", 0x0400},
        {"rcp.rp.ftz.f32 %r0, 0f7e800001; mov.b64 %rd0, {%r0, 0};", 0},
        {"mov.b16 %h0, 0xbbff; mov.b16 %h1, 0x0400; mul.ftz.f16 %h0, %h0, %h1; cvt.u64.u16 %rd0, %h0;", 0x8000},
    };
    std::string body;
    for (std::size_t i = 0; i < std::size(rows); ++i) {
        body += std::string(rows[i].instruction) + " st.global.b64 [%out+" + std::to_string(8 * i) + "], %rd0;\n";
    }
    const auto out = run<unsigned long long>(body, 1, std::size(rows), std::vector<int>(1));
    for (std::size_t i = 0; i < std::size(rows); ++i) {
        EXPECT_EQ(rows[i].expected, out[i]) << rows[i].instruction;
    }
}

TEST_F(PtxBreadthTest, HalfPrecisionModifiersAndNarrowFormats) {
    // -2 and 0.5 as f16; the smallest subnormal; 1/3 and 1000 as f32.
    const auto out = run<unsigned>(
        "ld.global.v4.u32 {%r0,%r1,%r2,%r3}, [%in]; mov.b32 %f1, %r2; mov.b32 %f2, %r3;\n"
        "mov.b32 %r4, 0x3C003C00; fma.rn.relu.f16x2 %r5, %r0, %r4, 0; st.global.u32 [%out], %r5;\n"
        "add.ftz.f16x2 %r5, %r1, %r1; st.global.u32 [%out+4], %r5;\n"
        "add.sat.f16x2 %r5, %r0, %r4; st.global.u32 [%out+8], %r5;\n"
        "cvt.rna.tf32.f32 %r5, %f1; st.global.u32 [%out+12], %r5;\n"
        "cvt.rn.satfinite.e4m3x2.f32 %h1, %f2, %f1; cvt.u32.u16 %r5, %h1; st.global.u32 [%out+16], %r5;\n"
        "cvt.rn.f16x2.e4m3x2 %r5, %h1; st.global.u32 [%out+20], %r5;\n"
        "setp.gt.and.f16x2 %p1|%p2, %r0, %r1, 1; selp.b32 %r5, 1, 0, %p1; selp.b32 %r6, 2, 0, %p2; or.b32 %r5, %r5, "
        "%r6;\n"
        "st.global.u32 [%out+24], %r5;",
        1, 7, std::vector<unsigned>{0x3800C000, 0x00010001, 0x3EAAAAAB, 0x447A0000});
    EXPECT_EQ(0x38000000U, out[0]);  // -2 is cut off
    EXPECT_EQ(0U, out[1]);
    EXPECT_EQ(0x3C000000U, out[2]);  // 1.5 and -1 in [0, 1]
    EXPECT_EQ(0x3EAAA000U, out[3]);
    EXPECT_EQ(0x7E2BU, out[4]);      // 448 is the largest; 1/3 becomes 0.34375
    EXPECT_EQ(0x5F003580U, out[5]);  // 448 and 0.34375
    EXPECT_EQ(2U, out[6]);           // -2 is not above the subnormal, 0.5 is
}

TEST_F(PtxBreadthTest, AllocaReturnsMemoryPerThread) {
    const auto out = run<unsigned>(own_places(4, 0) +
                                       "add.u32 %r1, %thread, 1; shl.b32 %r1, %r1, 2; cvt.u64.u32 %rd1, %r1;\n"
                                       "stacksave.u64 %rd4; alloca.u64 %rd2, %rd1, 16; st.local.u32 [%rd2], %thread;\n"
                                       "cvta.local.u64 %rd3, %rd2; ld.u32 %r2, [%rd3]; stackrestore.u64 %rd4;\n"
                                       "alloca.u64 %rd5, %rd1, 16; setp.eq.u64 %p1, %rd2, %rd5;\n"
                                       "@%p1 add.u32 %r2, %r2, 1000; st.global.u32 [%rd10], %r2;",
                                   32, 32, std::vector<int>(1));
    for (unsigned lane = 0; lane < 32; ++lane) {
        ASSERT_EQ(1000 + lane, out[lane]) << lane;
    }
}

TEST_F(PtxBreadthTest, VectorAtomicsAddEachElement) {
    const CUdeviceptr out = upload(std::vector<float>{1, 2, 3, 4});
    OK(start(compile("mov.f32 %f1, 0f3F800000; mov.f32 %f2, 0f40000000;\n"
                     "red.global.add.v4.f32 [%out], {%f1,%f2,%f1,%f2};\n"
                     "atom.global.add.v2.f32 {%f3,%f4}, [%out+8], {%f1,%f1};"),
             {1}, {8}, out, out));
    EXPECT_EQ((std::vector<float>{9, 18, 19, 28}), download<float>(out, 4));
}

TEST_F(PtxBreadthTest, RefusedInstructionsAreReportedWithTheirLine) {
    const auto log_of = [](const std::string& line) {
        const std::string text =
            ".version 8.6\n.target sm_90a\n.address_size 64\n"
            ".extern .func (.param .b32 result) cudaLaunchDeviceV2(.param .b64 buffer, .param .b64 stream);\n"
            ".visible .entry k() {\n.reg .b32 %r<8>;\n.reg .b64 %rd<8>;\n" +
            line + "\nret;\n}\n";
        char log[1024] = "";
        CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
        void* values[] = {log, reinterpret_cast<void*>(sizeof log)};
        CUmodule module = nullptr;
        EXPECT_NE(CUDA_SUCCESS, CALL(cuModuleLoadDataEx)(&module, text.c_str(), 2, options, values));
        return std::string(log);
    };
    const std::string wgmma = log_of("wgmma.fence.sync.aligned;");
    EXPECT_NE(std::string::npos, wgmma.find("wgmma.fence.sync.aligned")) << wgmma;
    EXPECT_NE(std::string::npos, wgmma.find("line 8")) << wgmma;
    const std::string tensor = log_of(
        "cp.async.bulk.tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r1], [%rd1, {%r2}], "
        "[%r3];");
    EXPECT_NE(std::string::npos, tensor.find("cp.async.bulk.tensor")) << tensor;
    const std::string launch =
        log_of("{ .param .b32 result; .param .b64 a; .param .b64 b; call (result), cudaLaunchDeviceV2, (a, b); }");
    EXPECT_NE(std::string::npos, launch.find("dynamic parallelism")) << launch;
}

// One kernel needs, through a function, a feature that the software GPU lacks. The others run.
TEST_F(PtxBreadthTest, UnsupportedKernelDoesNotAffectOthers) {
    const char* text =
        ".version 8.6\n.target sm_90a\n.address_size 64\n"
        ".func lacking() { wgmma.fence.sync.aligned; ret; }\n"
        ".visible .entry cannot() { call lacking; ret; }\n"
        ".visible .entry can(.param .u64 out) { .reg .b64 %rd<2>; ld.param.u64 %rd1, [out]; st.global.u32 [%rd1], 7; "
        "ret; }\n";
    CUmodule module = nullptr;
    OK(CALL(cuModuleLoadData)(&module, text));
    CUfunction can = nullptr, cannot = nullptr;
    OK(CALL(cuModuleGetFunction)(&can, module, "can"));
    OK(CALL(cuModuleGetFunction)(&cannot, module, "cannot"));
    const CUdeviceptr out = upload(std::vector<unsigned>(1));
    EXPECT_EQ(CUDA_ERROR_NOT_SUPPORTED, start(cannot, {1}, {1}, out, out));
    OK(start(can, {1}, {1}, out, out));
    EXPECT_EQ(7U, download<unsigned>(out, 1)[0]);
}

}  // namespace
}  // namespace gpupool::softgpu_test
