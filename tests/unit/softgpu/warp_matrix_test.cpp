// Matrix instructions, with small whole numbers, so that every order of summation gives the same result.
#include "tests/unit/softgpu/ptx_kernel.h"

namespace gpupool::softgpu_test {
namespace {

using WarpMatrixTest = PtxKernelTest;

unsigned short half_of(int value) {
    if (value == 0) {
        return 0;
    }
    const unsigned sign = value < 0 ? 0x8000 : 0;
    unsigned magnitude = static_cast<unsigned>(value < 0 ? -value : value), exponent = 0;
    while ((magnitude >> exponent) > 1) {
        ++exponent;
    }
    return static_cast<unsigned short>(sign | (exponent + 15) << 10 | ((magnitude << (10 - exponent)) & 0x3FF));
}

int a_at(int row, int k) {
    return (row * 5 + k * 3) % 11 - 4;
}
int b_at(int k, int column) {
    return (k * 7 + column * 2) % 9 - 3;
}

template <class T>
T product(int row, int column, int depth, T start) {
    for (int k = 0; k < depth; ++k) {
        start += static_cast<T>(a_at(row, k) * b_at(k, column));
    }
    return start;
}

TEST_F(WarpMatrixTest, WmmaOfHalvesBetweenMatricesInMemory) {
    std::vector<unsigned short> in(512);  // a by rows, then b by columns
    for (int i = 0; i < 16; ++i) {
        for (int k = 0; k < 16; ++k) {
            in[i * 16 + k] = half_of(a_at(i, k)), in[256 + i * 16 + k] = half_of(b_at(k, i));
        }
    }
    const auto out = run<float>(
        "wmma.load.a.sync.aligned.row.m16n16k16.global.f16 {%r0,%r1,%r2,%r3,%r4,%r5,%r6,%r7}, [%in], 16;\n"
        "wmma.load.b.sync.aligned.col.m16n16k16.global.f16 {%r8,%r9,%r10,%r11,%r12,%r13,%r14,%r15}, [%in+512], 16;\n"
        "mov.f32 %f0, 0f3F800000;\n"
        "wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32 {%f1,%f2,%f3,%f4,%f5,%f6,%f7,%f8}, "
        "{%r0,%r1,%r2,%r3,%r4,%r5,%r6,%r7}, {%r8,%r9,%r10,%r11,%r12,%r13,%r14,%r15}, "
        "{%f0,%f0,%f0,%f0,%f0,%f0,%f0,%f0};\n"
        "wmma.store.d.sync.aligned.row.m16n16k16.global.f32 [%out], {%f1,%f2,%f3,%f4,%f5,%f6,%f7,%f8}, 20;",
        32, 16 * 20, in);
    for (int row = 0; row < 16; ++row) {
        for (int column = 0; column < 16; ++column) {
            ASSERT_EQ(product<float>(row, column, 16, 1), out[row * 20 + column]) << row << ',' << column;
        }
    }
}

TEST_F(WarpMatrixTest, WmmaOfBytesSaturates) {
    std::vector<signed char> in(256 * 2, 127);
    const auto out = run<int>(
        "wmma.load.a.sync.aligned.row.m16n16k16.s8 {%r0,%r1}, [%in], 16;\n"
        "wmma.load.b.sync.aligned.col.m16n16k16.s8 {%r2,%r3}, [%in+256], 16;\n"
        "mov.u32 %r4, 2147483000;\n"
        "wmma.mma.sync.aligned.row.col.m16n16k16.s32.s8.s8.s32.satfinite {%r10,%r11,%r12,%r13,%r14,%r15,%r16,%r17}, "
        "{%r0,%r1}, {%r2,%r3}, {%r4,%r4,%r4,%r4,%r4,%r4,%r4,%r4};\n"
        "wmma.store.d.sync.aligned.col.m16n16k16.s32 [%out], {%r10,%r11,%r12,%r13,%r14,%r15,%r16,%r17};",
        32, 256, in);
    EXPECT_EQ(std::vector<int>(256, 2147483647), out);
}

// The fragments of the PTX manual, written out per lane: a holds rows g and g + 8, b column g, c and d pairs.
TEST_F(WarpMatrixTest, MmaFragmentsMatchTheManual) {
    std::vector<unsigned short> in;
    for (int lane = 0; lane < 32; ++lane) {
        const int g = lane >> 2, t = lane & 3;
        for (int i = 0; i < 8; ++i) {
            const int row = i < 2 || (i >= 4 && i < 6) ? g : g + 8;
            in.push_back(half_of(a_at(row, t * 2 + (i & 1) + (i >= 4 ? 8 : 0))));
        }
        for (int i = 0; i < 4; ++i) {
            in.push_back(half_of(b_at(t * 2 + (i & 1) + (i >= 2 ? 8 : 0), g)));
        }
    }
    const auto out = run<float>(own_places(16, 24) +
                                    "ld.global.v2.u32 {%r0,%r1}, [%rd11]; ld.global.v2.u32 {%r2,%r3}, [%rd11+8];\n"
                                    "ld.global.v2.u32 {%r4,%r5}, [%rd11+16]; mov.f32 %f0, 0f40000000;\n"
                                    "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f1,%f2,%f3,%f4}, "
                                    "{%r0,%r1,%r2,%r3}, {%r4,%r5}, {%f0,%f0,%f0,%f0};\n"
                                    "st.global.v4.f32 [%rd10], {%f1,%f2,%f3,%f4};",
                                32, 128, in);
    for (int lane = 0; lane < 32; ++lane) {
        for (int i = 0; i < 4; ++i) {
            const int row = (lane >> 2) + (i < 2 ? 0 : 8), column = (lane & 3) * 2 + (i & 1);
            ASSERT_EQ(product<float>(row, column, 16, 2), out[lane * 4 + i]) << lane << ',' << i;
        }
    }
}

TEST_F(WarpMatrixTest, MmaOfBytesAndOfDoubles) {
    std::vector<signed char> in;
    for (int lane = 0; lane < 32; ++lane) {
        const int g = lane >> 2, t = lane & 3;
        for (int i = 0; i < 16; ++i) {
            const int row = i < 4 || (i >= 8 && i < 12) ? g : g + 8;
            in.push_back(static_cast<signed char>(a_at(row, t * 4 + (i & 3) + (i >= 8 ? 16 : 0))));
        }
        for (int i = 0; i < 8; ++i) {
            in.push_back(static_cast<signed char>(b_at(t * 4 + (i & 3) + (i >= 4 ? 16 : 0), g)));
        }
    }
    const auto out = run<int>(own_places(16, 24) +
                                  "ld.global.v2.u32 {%r0,%r1}, [%rd11]; ld.global.v2.u32 {%r2,%r3}, [%rd11+8];\n"
                                  "ld.global.v2.u32 {%r4,%r5}, [%rd11+16]; mov.u32 %r6, 3;\n"
                                  "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%r10,%r11,%r12,%r13}, "
                                  "{%r0,%r1,%r2,%r3}, {%r4,%r5}, {%r6,%r6,%r6,%r6};\n"
                                  "st.global.v4.u32 [%rd10], {%r10,%r11,%r12,%r13};",
                              32, 128, in);
    std::vector<double> doubles;
    for (int lane = 0; lane < 32; ++lane) {
        doubles.push_back(a_at(lane >> 2, lane & 3));
        doubles.push_back(b_at(lane & 3, lane >> 2));
    }
    const auto sums = run<double>(own_places(16, 16) +
                                      "ld.global.v2.f64 {%fd0,%fd1}, [%rd11]; mov.f64 %fd2, 0d0000000000000000;\n"
                                      "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%fd3,%fd4}, {%fd0}, {%fd1}, "
                                      "{%fd2,%fd2};\nst.global.v2.f64 [%rd10], {%fd3,%fd4};",
                                  32, 64, doubles);
    for (int lane = 0; lane < 32; ++lane) {
        for (int i = 0; i < 4; ++i) {
            const int row = (lane >> 2) + (i < 2 ? 0 : 8), column = (lane & 3) * 2 + (i & 1);
            ASSERT_EQ(product<int>(row, column, 32, 3), out[lane * 4 + i]) << lane << ',' << i;
        }
        for (int i = 0; i < 2; ++i) {
            ASSERT_EQ(product<double>(lane >> 2, (lane & 3) * 2 + i, 4, 0), sums[lane * 2 + i]) << lane << ',' << i;
        }
    }
}

TEST_F(WarpMatrixTest, LdmatrixAndItsTransposedForm) {
    std::vector<unsigned short> in(128);
    for (int i = 0; i < 128; ++i) {
        in[i] = static_cast<unsigned short>(i);
    }
    const auto out = run<unsigned short>(
        ".shared .align 16 .b8 tile[256];\n" + own_places(12, 8) +
            "ld.global.u64 %rd1, [%rd11]; mov.u32 %r1, tile; shl.b32 %r2, %thread, 3; add.u32 %r2, %r1, %r2;\n"
            "st.shared.u64 [%r2], %rd1; bar.sync 0; shl.b32 %r3, %thread, 4; add.u32 %r3, %r1, %r3;\n"
            "ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r4,%r5}, [%r3];\n"
            "ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%r6}, [%r3];\n"
            "st.global.u32 [%rd10], %r4; st.global.u32 [%rd10+4], %r5; st.global.u32 [%rd10+8], %r6;",
        32, 32 * 6, in);
    for (int lane = 0; lane < 32; ++lane) {
        const int row = lane / 4, column = lane % 4 * 2;
        for (int half = 0; half < 2; ++half) {
            ASSERT_EQ(row * 8 + column + half, out[lane * 6 + half]) << lane;
            ASSERT_EQ(64 + row * 8 + column + half, out[lane * 6 + 2 + half]) << lane;
            ASSERT_EQ((column + half) * 8 + row, out[lane * 6 + 4 + half]) << lane;
        }
    }
}

}  // namespace
}  // namespace gpupool::softgpu_test
