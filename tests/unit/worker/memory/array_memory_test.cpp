#include "server/worker/memory/array_memory.h"

#include <gtest/gtest.h>

#include <limits>

namespace gpupool::worker {
namespace {

constexpr CUarray_format kByte = CU_AD_FORMAT_UNSIGNED_INT8, kFloat = CU_AD_FORMAT_FLOAT;

// Sizes per array measured on an H100 with driver 580, over as many arrays as fill a gigabyte, or 20,000.
struct Seen {
    std::size_t width, height, depth;
    CUarray_format format;
    unsigned channels, flags, levels;
    double bytes;
};

constexpr Seen kSeen[] = {
    {1, 1, 16384, kByte, 1, 0, 0, 8388608},
    {1, 16384, 16, kByte, 1, 0, 0, 16777216},
    {131072, 1, 0, kFloat, 4, 0, 0, 16777216},
    {1025, 1025, 0, kFloat, 4, 0, 0, 20971520},
    {1, 1, 0, kByte, 1, 0, 0, 524},
    {1, 0, 0, kByte, 1, 0, 0, 524},
    {1000, 0, 0, kFloat, 1, 0, 0, 32296},
    {64, 8, 0, kByte, 1, 0, 0, 524},
    {65, 9, 0, kByte, 1, 0, 0, 2097},
    {256, 256, 0, kFloat, 4, 0, 0, 1048576},
    {512, 512, 0, kByte, 1, 0, 0, 262144},
    {100, 100, 100, kFloat, 1, 0, 0, 6291456},
    {100, 100, 0, kFloat, 1, 0, 0, 58254},
    {1024, 1024, 0, kFloat, 1, 0, 0, 4194304},
    {2048, 2048, 0, kFloat, 4, 0, 0, 67108864},
    {33, 33, 33, kByte, 4, 0, 0, 419430},
    {300, 17, 5, kByte, 2, 0, 0, 123362},
    {64, 64, 6, kByte, 4, CUDA_ARRAY3D_CUBEMAP, 0, 99864},
    {10, 10, 100, kFloat, 1, CUDA_ARRAY3D_LAYERED, 0, 104858},
    {10, 0, 100, kFloat, 1, CUDA_ARRAY3D_LAYERED, 0, 52429},
    {1000, 1000, 0, kFloat, 4, CUDA_ARRAY3D_SURFACE_LDST, 0, 16777216},
    {1000, 1000, 0, kFloat, 4, 0, 5, 23068672},
    {1024, 1024, 0, kByte, 1, 0, 11, 2097152},
    {1, 1, 16384, kByte, 1, 0, 3, 14680064},
    {100, 100, 20, kFloat, 2, 0, 4, 4194304},
    {256, 256, 0, CU_AD_FORMAT_BC1_UNORM, 4, 0, 0, 32820},
    {256, 256, 0, CU_AD_FORMAT_BC7_UNORM, 4, 0, 0, 65536},
    {3000, 3000, 0, kByte, 1, CUDA_ARRAY3D_TEXTURE_GATHER, 0, 10485760},
    {7, 1000, 0, kFloat, 1, 0, 0, 65536},
    {200, 130, 0, kFloat, 1, 0, 0, 233017},
    {4000, 2, 0, kByte, 1, 0, 0, 32296},
};

TEST(ArrayMemory, MatchesTheDriversMeasuredSizes) {
    for (const Seen& seen : kSeen) {
        const auto bytes =
            array_bytes({seen.width, seen.height, seen.depth, seen.format, seen.channels, seen.flags}, seen.levels);
        ASSERT_TRUE(bytes.has_value());
        const auto charged = static_cast<double>(*bytes);
        const auto what = [&] {
            return ::testing::Message() << seen.width << "x" << seen.height << "x" << seen.depth << ", " << seen.levels
                                        << " levels: " << charged << " for " << seen.bytes;
        };
        EXPECT_GE(charged, 0.97 * seen.bytes) << what();
        EXPECT_LE(charged, 1.001 * seen.bytes) << what();
    }
}

TEST(ArrayMemory, DeferredMappingTakesNone) {
    EXPECT_EQ(array_bytes({4096, 4096, 0, kFloat, 4, CUDA_ARRAY3D_SPARSE}, 1), 0u);
    EXPECT_EQ(array_bytes({4096, 4096, 0, kFloat, 4, CUDA_ARRAY3D_DEFERRED_MAPPING}, 1), 0u);
}

TEST(ArrayMemory, HugeArraysDoNotOverflow) {
    constexpr std::size_t kAll = std::numeric_limits<std::size_t>::max();
    for (const CUDA_ARRAY3D_DESCRIPTOR array : {CUDA_ARRAY3D_DESCRIPTOR{kAll, 1, 1, kFloat, 4, 0},
                                                {1, kAll, 1, kFloat, 4, 0},
                                                {1, 1, kAll, kByte, 1, 0},
                                                {kAll / 64, 64, 1, kByte, 1, 0},
                                                {kAll / 8, 1, 1, kByte, 1, 0}}) {
        const auto bytes = array_bytes(array, 1);
        EXPECT_TRUE(!bytes || *bytes >= kAll / 8) << *bytes;
    }
}

}  // namespace
}  // namespace gpupool::worker
