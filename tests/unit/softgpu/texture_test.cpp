// Texture and surface objects: what kernels read and write through them.
#include <algorithm>
#include <cstring>
#include <future>

#include "tests/unit/softgpu/ptx_kernel.h"

namespace gpupool::softgpu_test {
namespace {

class TextureTest : public PtxKernelTest {
  protected:
    template <class T>
    CUarray make_array(CUDA_ARRAY3D_DESCRIPTOR descriptor, const std::vector<T>& texels) {
        CUarray array = nullptr;
        EXPECT_EQ(CUDA_SUCCESS, CALL(cuArray3DCreate_v2)(&array, &descriptor));
        fill(array, descriptor, texels);
        return array;
    }
    template <class T>
    void fill(CUarray array, const CUDA_ARRAY3D_DESCRIPTOR& d, const std::vector<T>& texels) {
        CUDA_MEMCPY3D copy{};
        copy.srcMemoryType = CU_MEMORYTYPE_HOST, copy.srcHost = texels.data();
        copy.dstMemoryType = CU_MEMORYTYPE_ARRAY, copy.dstArray = array;
        copy.Height = std::max<std::size_t>(1, d.Height), copy.Depth = std::max<std::size_t>(1, d.Depth);
        copy.WidthInBytes = texels.size() * sizeof(T) / copy.Height / copy.Depth;
        copy.srcPitch = copy.WidthInBytes, copy.srcHeight = copy.Height;
        EXPECT_EQ(CUDA_SUCCESS, CALL(cuMemcpy3D_v2)(&copy));
    }
    static CUDA_RESOURCE_DESC of_array(CUarray array) {
        CUDA_RESOURCE_DESC resource{};
        resource.resType = CU_RESOURCE_TYPE_ARRAY;
        resource.res.array.hArray = array;
        return resource;
    }
    static CUDA_TEXTURE_DESC sampling(CUaddress_mode mode, CUfilter_mode filter, unsigned flags) {
        CUDA_TEXTURE_DESC description{};
        for (auto& axis : description.addressMode) {
            axis = mode;
        }
        description.filterMode = filter;
        description.flags = flags;
        return description;
    }
    CUtexObject make_texture(const CUDA_RESOURCE_DESC& resource, const CUDA_TEXTURE_DESC& description) {
        CUtexObject object = 0;
        EXPECT_EQ(CUDA_SUCCESS, CALL(cuTexObjectCreate)(&object, &resource, &description, nullptr));
        return object;
    }
    // One sample per point: `fetch` reads the texture %rd1 at %f1, %f2, %f3 (or %r1...) into %f10.. (%r10..).
    std::vector<float> sample(CUtexObject texture, const std::string& fetch, const std::vector<float>& points) {
        std::vector<float> in{0, 0};
        std::memcpy(in.data(), &texture, sizeof texture);
        in.insert(in.end(), points.begin(), points.end());
        const auto threads = static_cast<unsigned>(points.size() / 3);
        return run<float>(own_places(4, 12) +
                              "ld.global.u64 %rd1, [%in]; ld.global.f32 %f1, [%rd11+8]; ld.global.f32 %f2, [%rd11+12];"
                              "ld.global.f32 %f3, [%rd11+16]; cvt.rzi.s32.f32 %r1, %f1; cvt.rzi.s32.f32 %r2, %f2;"
                              "cvt.rzi.s32.f32 %r3, %f3;\n" +
                              fetch + "\nst.global.f32 [%rd10], %f10;",
                          threads, threads, in);
    }
};

constexpr const char* kFetch2d = "tex.2d.v4.f32.f32 {%f10, %f11, %f12, %f13}, [%rd1, {%f1, %f2}];";

std::vector<float> counting(std::size_t count) {
    std::vector<float> result(count);
    for (std::size_t i = 0; i < count; ++i) {
        result[i] = static_cast<float>(i);
    }
    return result;
}

TEST_F(TextureTest, NearestTexelsAndTheEdgeBehindClamping) {
    const CUarray array = make_array({4, 3, 0, CU_AD_FORMAT_FLOAT, 1, 0}, counting(12));
    const CUtexObject texture =
        make_texture(of_array(array), sampling(CU_TR_ADDRESS_MODE_CLAMP, CU_TR_FILTER_MODE_POINT, 0));
    EXPECT_EQ((std::vector<float>{0, 3, 6, 11, 8}),
              sample(texture, kFetch2d, {0.5F, 0.5F, 0, 3.9F, 0.1F, 0, 2, 1, 0, 9, 9, 0, -5, 2.5F, 0}));
}

TEST_F(TextureTest, LinearFilteringWeighsNeighboursByDistance) {
    const CUarray array = make_array({4, 3, 0, CU_AD_FORMAT_FLOAT, 1, 0}, counting(12));
    const CUtexObject texture =
        make_texture(of_array(array), sampling(CU_TR_ADDRESS_MODE_CLAMP, CU_TR_FILTER_MODE_LINEAR, 0));
    // Texel (x, y) is 4y + x, with its centre at (x + 0.5, y + 0.5).
    EXPECT_EQ((std::vector<float>{0, 0.5F, 2.5F, 6.25F, 11}),
              sample(texture, kFetch2d, {0, 0, 0, 1, 0.5F, 0, 1, 1, 0, 2.75F, 1.5F, 0, 9, 9, 0}));
}

TEST_F(TextureTest, NormalizedCoordinatesWrapAndMirror) {
    const CUarray array = make_array({4, 1, 0, CU_AD_FORMAT_FLOAT, 1, 0}, counting(4));
    const std::vector<float> points{0.3F, 0, 0, 1.3F, 0, 0, -0.1F, 0, 0, 1.1F, 0, 0, 1.9F, 0, 0};
    const CUtexObject wraps = make_texture(
        of_array(array), sampling(CU_TR_ADDRESS_MODE_WRAP, CU_TR_FILTER_MODE_POINT, CU_TRSF_NORMALIZED_COORDINATES));
    EXPECT_EQ((std::vector<float>{1, 1, 3, 0, 3}), sample(wraps, kFetch2d, points));
    const CUtexObject mirrors = make_texture(
        of_array(array), sampling(CU_TR_ADDRESS_MODE_MIRROR, CU_TR_FILTER_MODE_POINT, CU_TRSF_NORMALIZED_COORDINATES));
    EXPECT_EQ((std::vector<float>{1, 2, 0, 3, 0}), sample(mirrors, kFetch2d, points));
}

TEST_F(TextureTest, BorderColourOutside) {
    const CUarray array = make_array({2, 2, 0, CU_AD_FORMAT_FLOAT, 1, 0}, counting(4));
    CUDA_TEXTURE_DESC description = sampling(CU_TR_ADDRESS_MODE_BORDER, CU_TR_FILTER_MODE_POINT, 0);
    description.borderColor[0] = 7;
    const CUtexObject texture = make_texture(of_array(array), description);
    EXPECT_EQ((std::vector<float>{3, 7, 7}), sample(texture, kFetch2d, {1.5F, 1.5F, 0, 2, 1, 0, 0.5F, -0.5F, 0}));
}

TEST_F(TextureTest, BytesReadAsUnitRangeOrAsIntegers) {
    const CUarray array = make_array<unsigned char>({4, 0, 0, CU_AD_FORMAT_UNSIGNED_INT8, 1, 0}, {0, 51, 102, 255});
    const CUtexObject real =
        make_texture(of_array(array), sampling(CU_TR_ADDRESS_MODE_CLAMP, CU_TR_FILTER_MODE_POINT, 0));
    EXPECT_EQ((std::vector<float>{0, 51 / 255.0F, 1}),
              sample(real, "tex.1d.v4.f32.f32 {%f10, %f11, %f12, %f13}, [%rd1, {%f1}];", {0, 0, 0, 1, 0, 0, 3, 0, 0}));
    const CUtexObject whole = make_texture(
        of_array(array), sampling(CU_TR_ADDRESS_MODE_CLAMP, CU_TR_FILTER_MODE_POINT, CU_TRSF_READ_AS_INTEGER));
    EXPECT_EQ((std::vector<float>{51, 255}),
              sample(whole, "tex.1d.v4.u32.s32 {%r10, %r11, %r12, %r13}, [%rd1, {%r1}]; cvt.rn.f32.u32 %f10, %r10;",
                     {1, 0, 0, 9, 0, 0}));
    CUtexObject refused = 0;
    const auto resource = of_array(array);
    const auto linear = sampling(CU_TR_ADDRESS_MODE_CLAMP, CU_TR_FILTER_MODE_LINEAR, CU_TRSF_READ_AS_INTEGER);
    EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, CALL(cuTexObjectCreate)(&refused, &resource, &linear, nullptr));
}

TEST_F(TextureTest, LayersAndThreeDimensions) {
    const CUarray layers = make_array({2, 2, 3, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_LAYERED}, counting(12));
    const auto description = sampling(CU_TR_ADDRESS_MODE_CLAMP, CU_TR_FILTER_MODE_LINEAR, 0);
    EXPECT_EQ((std::vector<float>{4, 10, 11}),
              sample(make_texture(of_array(layers), description),
                     "tex.a2d.v4.f32.f32 {%f10, %f11, %f12, %f13}, [%rd1, {%r3, %f1, %f2, %f2}];",
                     {0.5F, 0.5F, 1, 1.5F, 1, 2, 1.5F, 1.5F, 8}));
    const CUarray volume = make_array({2, 2, 3, CU_AD_FORMAT_FLOAT, 1, 0}, counting(12));
    EXPECT_EQ((std::vector<float>{2, 5.5F}),
              sample(make_texture(of_array(volume), description),
                     "tex.3d.v4.f32.f32 {%f10, %f11, %f12, %f13}, [%rd1, {%f1, %f2, %f3, %f3}];",
                     {0.5F, 0.5F, 1, 1, 1, 1.5F}));
}

TEST_F(TextureTest, LevelsOfAMipmappedArray) {
    CUmipmappedArray mipmap = nullptr;
    const CUDA_ARRAY3D_DESCRIPTOR descriptor{4, 4, 0, CU_AD_FORMAT_FLOAT, 1, 0};
    OK(CALL(cuMipmappedArrayCreate)(&mipmap, &descriptor, 3));
    for (unsigned level = 0; level < 3; ++level) {
        CUarray array = nullptr;
        OK(CALL(cuMipmappedArrayGetLevel)(&array, mipmap, level));
        const std::size_t side = 4U >> level;
        fill(array, {side, side, 0, CU_AD_FORMAT_FLOAT, 1, 0},
             std::vector<float>(side * side, static_cast<float>(10 * level)));
    }
    CUDA_RESOURCE_DESC resource{};
    resource.resType = CU_RESOURCE_TYPE_MIPMAPPED_ARRAY;
    resource.res.mipmap.hMipmappedArray = mipmap;
    CUDA_TEXTURE_DESC description =
        sampling(CU_TR_ADDRESS_MODE_CLAMP, CU_TR_FILTER_MODE_LINEAR, CU_TRSF_NORMALIZED_COORDINATES);
    description.mipmapFilterMode = CU_TR_FILTER_MODE_LINEAR;
    description.maxMipmapLevelClamp = 2;
    EXPECT_EQ((std::vector<float>{0, 10, 15, 20}),
              sample(make_texture(resource, description),
                     "tex.level.2d.v4.f32.f32 {%f10, %f11, %f12, %f13}, [%rd1, {%f1, %f2}], %f3;",
                     {0.5F, 0.5F, 0, 0.5F, 0.5F, 1, 0.5F, 0.5F, 1.5F, 0.5F, 0.5F, 9}));
    OK(CALL(cuMipmappedArrayDestroy)(mipmap));
}

TEST_F(TextureTest, LinearMemoryReadsZeroBehindItsEnd) {
    const CUdeviceptr memory = upload(counting(8));
    CUDA_RESOURCE_DESC resource{};
    resource.resType = CU_RESOURCE_TYPE_LINEAR;
    resource.res.linear = {memory, CU_AD_FORMAT_FLOAT, 1, 8 * sizeof(float)};
    const CUtexObject texture = make_texture(resource, sampling(CU_TR_ADDRESS_MODE_CLAMP, CU_TR_FILTER_MODE_POINT, 0));
    EXPECT_EQ(
        (std::vector<float>{5, 0, 0}),
        sample(texture, "tex.1d.v4.f32.s32 {%f10, %f11, %f12, %f13}, [%rd1, {%r1}];", {5, 0, 0, 8, 0, 0, -1, 0, 0}));
    resource.res.linear.devPtr += 4;
    CUtexObject refused = 0;
    const auto description = sampling(CU_TR_ADDRESS_MODE_CLAMP, CU_TR_FILTER_MODE_POINT, 0);
    EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, CALL(cuTexObjectCreate)(&refused, &resource, &description, nullptr));
}

TEST_F(TextureTest, SurfacesAreWrittenAndReadByByteOffsets) {
    const CUarray array =
        make_array({4, 2, 0, CU_AD_FORMAT_UNSIGNED_INT32, 1, CUDA_ARRAY3D_SURFACE_LDST}, std::vector<unsigned>(8, 9));
    CUsurfObject surface = 0;
    const auto resource = of_array(array);
    OK(CALL(cuSurfObjectCreate)(&surface, &resource));
    const auto read = run<unsigned>(
        own_places(8, 0) +
            "ld.global.u64 %rd1, [%in]; shl.b32 %r1, %thread, 2; mov.u32 %r2, 1; add.u32 %r3, %thread, 100;\n"
            "sust.b.2d.b32.trap [%rd1, {%r1, %r2}], {%r3};\n"
            "suld.b.2d.b32.trap {%r4}, [%rd1, {%r1, %r2}]; st.global.u32 [%rd10], %r4;\n"
            "add.u32 %r1, %r1, 8; suld.b.2d.b32.zero {%r4}, [%rd1, {%r1, %r2}]; bar.sync 0;\n"
            "suld.b.2d.b32.zero {%r4}, [%rd1, {%r1, %r2}]; st.global.u32 [%rd10+4], %r4;",
        4, 8, std::vector<CUsurfObject>{surface});
    EXPECT_EQ((std::vector<unsigned>{100, 102, 101, 103, 102, 0, 103, 0}), read);
    EXPECT_EQ(CUDA_ERROR_ILLEGAL_ADDRESS,
              start(compile("ld.global.u64 %rd1, [%in]; mov.u32 %r1, 16; mov.u32 %r2, 0;\n"
                            "suld.b.2d.b32.trap {%r4}, [%rd1, {%r1, %r2}];"),
                    {1}, {1}, upload(std::vector<int>(1)), upload(std::vector<CUsurfObject>{surface})));
}

// Offsets are in texels even with normalized coordinates; places beyond the edge follow the address mode.
TEST_F(TextureTest, OffsetsAreInTexels) {
    const CUarray array = make_array({4, 3, 0, CU_AD_FORMAT_FLOAT, 1, 0}, counting(12));
    const CUtexObject plain =
        make_texture(of_array(array), sampling(CU_TR_ADDRESS_MODE_CLAMP, CU_TR_FILTER_MODE_POINT, 0));
    EXPECT_EQ((std::vector<float>{6, 7}),
              sample(plain, "tex.2d.v4.f32.f32 {%f10, %f11, %f12, %f13}, [%rd1, {%f1, %f2}], {2, 1};",
                     {0.5F, 0.5F, 0, 3, 0, 0}));
    EXPECT_EQ(
        (std::vector<float>{8, 5}),
        sample(plain, "tex.2d.v4.f32.s32 {%f10, %f11, %f12, %f13}, [%rd1, {%r1, %r2}], {-1, 1};", {1, 1, 0, 2, 0, 0}));
    // Of the four texels around (1, 1), the gather returns the lower left one first.
    EXPECT_EQ((std::vector<float>{5}),
              sample(plain, "tld4.r.2d.v4.f32.f32 {%f10, %f11, %f12, %f13}, [%rd1, {%f1, %f2}], {1, 0};", {1, 1, 0}));
    const CUtexObject normalized = make_texture(
        of_array(array), sampling(CU_TR_ADDRESS_MODE_WRAP, CU_TR_FILTER_MODE_POINT, CU_TRSF_NORMALIZED_COORDINATES));
    EXPECT_EQ(
        (std::vector<float>{1, 9}),
        sample(normalized, "tex.level.2d.v4.f32.f32 {%f10, %f11, %f12, %f13}, [%rd1, {%f1, %f2}], 0f00000000, {-3, 0};",
               {0.1F, 0.1F, 0, 0.1F, 0.9F, 0}));
}

// As on a GPU, because the launch precedes the destruction.
TEST_F(TextureTest, ObjectStaysValidForEarlierLaunches) {
    const CUarray array = make_array({4, 1, 0, CU_AD_FORMAT_FLOAT, 1, 0}, counting(4));
    const CUtexObject texture =
        make_texture(of_array(array), sampling(CU_TR_ADDRESS_MODE_CLAMP, CU_TR_FILTER_MODE_POINT, 0));
    const CUfunction function =
        compile("ld.global.u64 %rd1, [%in]; mov.f32 %f1, 0f40200000; mov.f32 %f2, 0f00000000;\n" +
                std::string(kFetch2d) + "\nst.global.f32 [%out], %f10;");
    CUdeviceptr out = upload(std::vector<float>(1)), in = upload(std::vector<CUtexObject>{texture});
    std::promise<void> go;
    auto waiting = go.get_future();
    OK(CALL(cuLaunchHostFunc)(
        nullptr, [](void* future) { static_cast<std::future<void>*>(future)->wait(); }, &waiting));
    void* params[] = {&out, &in};
    OK(CALL(cuLaunchKernel)(function, 1, 1, 1, 1, 1, 1, 0, nullptr, params, nullptr));
    OK(CALL(cuTexObjectDestroy)(texture));
    go.set_value();
    OK(CALL(cuCtxSynchronize)());
    EXPECT_EQ((std::vector<float>{2}), download<float>(out, 1));
}

TEST_F(TextureTest, DestroyedObjectIsAnIllegalAddress) {
    const CUarray array = make_array({4, 1, 0, CU_AD_FORMAT_FLOAT, 1, 0}, counting(4));
    const CUtexObject texture =
        make_texture(of_array(array), sampling(CU_TR_ADDRESS_MODE_CLAMP, CU_TR_FILTER_MODE_POINT, 0));
    OK(CALL(cuTexObjectDestroy)(texture));
    EXPECT_EQ(CUDA_ERROR_ILLEGAL_ADDRESS,
              start(compile("ld.global.u64 %rd1, [%in]; mov.f32 %f1, 0f00000000; mov.f32 %f2, %f1;\n" +
                            std::string(kFetch2d)),
                    {1}, {1}, upload(std::vector<int>(1)), upload(std::vector<CUtexObject>{texture})));
}

}  // namespace
}  // namespace gpupool::softgpu_test
