// Runs nvcc's real output on the software GPU and compares the results with the host's.
#include <bit>
#include <cmath>

#include "tests/unit/softgpu/driver.h"

namespace gpupool::softgpu_test {
namespace {

struct Pair {
    int a;
    double b;
    char c[5];
};

int fibonacci(int n) {
    return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2);
}

TEST_F(DriverTest, VectorAdd) {
    const int n = 1000;
    std::vector<float> a(n), b(n);
    for (int i = 0; i < n; ++i) {
        a[i] = static_cast<float>(i), b[i] = 0.5F * static_cast<float>(i);
    }
    const CUdeviceptr da = upload(a), db = upload(b), dc = upload(std::vector<float>(n, -1.0F));
    OK(launch("vector_add", {4}, {256}, 0, nullptr, da, db, dc, n));
    OK(CALL(cuCtxSynchronize)());
    const auto c = download<float>(dc, n);
    for (int i = 0; i < n; ++i) {
        ASSERT_EQ(a[i] + b[i], c[i]) << i;
    }
}

TEST_F(DriverTest, PrintfReturnsTheNumberOfItsArguments) {
    CUdeviceptr counts = 0;
    int host[2] = {-1, -1};
    OK(CALL(cuMemAlloc_v2)(&counts, sizeof host));
    OK(launch("count_printed", {1}, {1}, 0, nullptr, counts));
    OK(CALL(cuMemcpyDtoH_v2)(host, counts, sizeof host));
    EXPECT_EQ(2, host[0]);
    EXPECT_EQ(0, host[1]);
}

TEST_F(DriverTest, MatrixMultiply) {
    const int n = 64;
    std::vector<float> a(n * n), b(n * n);
    for (int i = 0; i < n * n; ++i) {
        a[i] = static_cast<float>(i % 7), b[i] = static_cast<float>(i % 5);
    }
    const CUdeviceptr da = upload(a), db = upload(b), dc = upload(std::vector<float>(n * n));
    OK(launch("matrix_multiply", {4, 4}, {16, 16}, 0, nullptr, da, db, dc, n));
    const auto c = download<float>(dc, n * n);
    for (int y = 0; y < n; ++y) {
        for (int x = 0; x < n; ++x) {
            float sum = 0;
            for (int k = 0; k < n; ++k) {
                sum += a[y * n + k] * b[k * n + x];
            }
            ASSERT_EQ(sum, c[y * n + x]) << x << ',' << y;
        }
    }
}

TEST_F(DriverTest, ReductionWithShufflesAndDynamicSharedMemory) {
    const int n = 10000;
    const std::vector<float> in(n, 1.0F);
    const CUdeviceptr din = upload(in), dout = upload(std::vector<float>{0});
    OK(launch("reduce", {5}, {256}, 64, nullptr, din, dout, n));
    EXPECT_EQ(static_cast<float>(n), download<float>(dout, 1)[0]);
}

TEST_F(DriverTest, HistogramWithSharedAndGlobalAtomics) {
    const int n = 20000;
    std::vector<unsigned char> data(n);
    std::vector<unsigned> expected(256);
    for (int i = 0; i < n; ++i) {
        ++expected[data[i] = static_cast<unsigned char>(i * i % 251)];
    }
    const CUdeviceptr ddata = upload(data), dbins = upload(std::vector<unsigned>(256));
    OK(launch("histogram", {6}, {128}, 0, nullptr, ddata, dbins, n));
    EXPECT_EQ(expected, download<unsigned>(dbins, 256));
}

TEST_F(DriverTest, RecursionFunctionPointersAndStructures) {
    Pair pair{10, 2.5, {1, 2, 3, 4, 5}};
    const CUdeviceptr dout = upload(std::vector<int>(65)), dreals = upload(std::vector<double>(64));
    OK(launch("calls", {1}, {64}, 0, nullptr, dout, dreals, pair, 3));
    const auto out = download<int>(dout, 65);
    const auto reals = download<double>(dreals, 64);
    for (int t = 0; t < 64; ++t) {
        ASSERT_EQ(fibonacci(t % 12) + (t % 2 == 0 ? fibonacci(t % 10) : 3 * (t % 10)) + 7, out[t]) << t;
        ASSERT_EQ(2.5 * 4 + t, reals[t]) << t;
    }
    EXPECT_EQ(13 + 3, out[64]);
}

TEST_F(DriverTest, Mathematics) {
    std::vector<float> f(64);
    std::vector<double> d(64);
    for (int i = 0; i < 64; ++i) {
        f[i] = 0.25F + static_cast<float>(i) / 16, d[i] = 1 + i * 0.37;
    }
    const CUdeviceptr df = upload(f), dd = upload(d), dl = upload(std::vector<long long>(64));
    const int k = 13;
    OK(launch("mathematics", {1}, {64}, 0, nullptr, df, dd, dl, k));
    const auto rf = download<float>(df, 64);
    const auto rd = download<double>(dd, 64);
    const auto rl = download<long long>(dl, 64);
    for (int t = 0; t < 64; ++t) {
        const float x = f[t];
        const double xf = std::sin(x) + std::exp(x) + std::sqrt(x) + std::log(x) / x + 1 / std::sqrt(x) + std::tanh(x) +
                          std::sin(static_cast<double>(x * 100));
        ASSERT_NEAR(xf, rf[t], 1e-4 * std::max(1.0, std::fabs(xf))) << t;
        const double expected = std::sqrt(d[t]) / x + std::exp(static_cast<double>(x)) + std::sin(d[t] * 1e3) +
                                std::pow(d[t], 2.5) + std::rint(static_cast<double>(x));
        ASSERT_NEAR(expected, rd[t], 1e-12 * std::max(1.0, std::fabs(expected))) << t;
        unsigned reversed = 0;
        for (int i = 0; i < 32; ++i) {
            reversed |= (static_cast<unsigned>(t) >> i & 1) << (31 - i);
        }
        const auto ut = static_cast<unsigned>(t);
        const long long permuted =
            static_cast<long long>((ut & 0xFF) | (static_cast<unsigned>(k) & 0xFF) << 8 | (ut >> 8 & 0xFF) << 16 |
                                   (static_cast<unsigned>(k) >> 8 & 0xFF) << 24);
        const long long integer = static_cast<long long>(x * 1000) / k +
                                  static_cast<long long>(static_cast<unsigned long long>(t * 77777) % (k + 7)) +
                                  std::popcount(ut) + std::countl_zero(ut) + static_cast<long long>(reversed) +
                                  (t == 0 ? 0 : std::countr_zero(ut) + 1) + std::llrint(x) +
                                  static_cast<long long>(static_cast<__int128>(t * 1000000007LL) * (1LL << 40) >> 64) +
                                  (t >> 2) * (t << 3) + permuted;
        ASSERT_EQ(integer, rl[t]) << t;
    }
}

TEST_F(DriverTest, LocalMemoryAndSwitch) {
    const CUdeviceptr dout = upload(std::vector<int>(64));
    OK(launch("local_and_switch", {1}, {64}, 0, nullptr, dout, 9));
    const auto out = download<int>(dout, 64);
    for (int t = 0; t < 64; ++t) {
        int r = 9 * (t % 20) + t;
        const int results[] = {r + 1, r * 2, r - 3, r ^ 4, r + 50, r * 6, r - 70, r ^ 8};
        ASSERT_EQ(results[t % 8], out[t]) << t;
    }
}

TEST_F(DriverTest, LanesReconvergeBehindDivergentLoops) {
    const CUdeviceptr dout = upload(std::vector<unsigned>(160));
    OK(launch("divergence", {1}, {32}, 0, nullptr, dout));
    const auto out = download<unsigned>(dout, 160);
    for (unsigned t = 0; t < 32; ++t) {
        unsigned steps = 0;
        for (unsigned x = t + 1; x != 1; ++steps) {
            x = (x & 1) != 0 ? 3 * x + 1 : x / 2;
        }
        ASSERT_EQ(steps, out[t]) << t;
        ASSERT_EQ(~0U, out[32 + t]) << t;
        ASSERT_EQ(0x49249249U, out[64 + t]);
        ASSERT_EQ(0xFU << t / 4 * 4, out[96 + t]);
        ASSERT_EQ(t < 16 ? 0xFFFFU : 0xFFFF0001U, out[128 + t]);
    }
}

TEST_F(DriverTest, LanesOfAWarpCanContendForALock) {
    const CUdeviceptr lock = upload(std::vector<int>{0}), value = upload(std::vector<int>{0});
    OK(launch("spin_lock", {3}, {64}, 0, nullptr, lock, value));
    EXPECT_EQ(192, download<int>(value, 1)[0]);
}

TEST_F(DriverTest, BarrierReductions) {
    const CUdeviceptr dout = upload(std::vector<int>(3));
    OK(launch("block_count", {1}, {100}, 0, nullptr, dout));
    EXPECT_EQ((std::vector<int>{50, 1, 1}), download<int>(dout, 3));
}

TEST_F(DriverTest, GridSynchronisation) {
    const int n = 4 * 64;
    const CUdeviceptr dout = upload(std::vector<int>(n));
    void* params[] = {const_cast<CUdeviceptr*>(&dout), const_cast<int*>(&n)};
    OK(CALL(cuLaunchCooperativeKernel)(function("grid_sync"), 4, 1, 1, 64, 1, 1, 0, nullptr, params));
    const auto out = download<int>(dout, n);
    for (int i = 0; i < n; ++i) {
        ASSERT_EQ((i + n / 2) % n, out[i]);
    }
}

TEST_F(DriverTest, FatBinaryAndLibrary) {
    const std::string image = file_bytes(GPUPOOL_SOFTGPU_KERNELS_FATBIN);
    CUlibrary library = nullptr;
    OK(CALL(cuLibraryLoadData)(&library, image.data(), nullptr, nullptr, 0, nullptr, nullptr, 0));
    CUkernel kernel = nullptr;
    OK(CALL(cuLibraryGetKernel)(&kernel, library, "vector_add"));
    size_t offset = 0, size = 0;
    OK(CALL(cuKernelGetParamInfo)(kernel, 3, &offset, &size));
    EXPECT_EQ(24U, offset);
    EXPECT_EQ(4U, size);
    EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, CALL(cuKernelGetParamInfo)(kernel, 4, &offset, &size));
    CUdeviceptr variable = 0;
    OK(CALL(cuLibraryGetGlobal)(&variable, &size, library, "counter"));
    EXPECT_EQ(4U, size);
    EXPECT_EQ(7, download<int>(variable, 1)[0]);
    const CUdeviceptr a = upload(std::vector<float>{1, 2}), c = upload(std::vector<float>{0, 0});
    int n = 2;
    void* params[] = {const_cast<CUdeviceptr*>(&a), const_cast<CUdeviceptr*>(&a), const_cast<CUdeviceptr*>(&c), &n};
    OK(CALL(cuLaunchKernel)(reinterpret_cast<CUfunction>(kernel), 1, 1, 1, 32, 1, 1, 0, nullptr, params, nullptr));
    EXPECT_EQ((std::vector<float>{2, 4}), download<float>(c, 2));
    OK(CALL(cuLibraryUnload)(library));
}

}  // namespace
}  // namespace gpupool::softgpu_test
