// Texture and surface references: deprecated, but driver 580 serves them for PTX of every target.
#include <string>
#include <vector>

#include "tests/gpu/arrays.h"

// Deprecated calls are what this file tests.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace gpupool::programs {
namespace {

// Kernels of one block, a thread for each element: `fetch` reads whole texels, `sample` at their centres, `add` changes
// a surface.
constexpr char kCode[] = R"(
.version 7.0
.target sm_50
.address_size 64
.visible .global .texref words;
.visible .global .surfref squares;
.visible .entry fetch(.param .u64 to) {
    .reg .u64 %a<3>; .reg .s32 %x; .reg .u32 %v<4>;
    ld.param.u64 %a0, [to]; mov.u32 %x, %tid.x;
    tex.1d.v4.u32.s32 {%v0, %v1, %v2, %v3}, [words, {%x}];
    mul.wide.s32 %a1, %x, 4; add.u64 %a0, %a0, %a1; st.global.u32 [%a0], %v0; ret;
}
.visible .entry sample(.param .u64 to) {
    .reg .u64 %a<3>; .reg .s32 %x<3>; .reg .u32 %v<4>; .reg .f32 %f<2>;
    ld.param.u64 %a0, [to]; mov.u32 %x0, %tid.x; mov.u32 %x1, %tid.y; mov.u32 %x2, %ntid.x;
    cvt.rn.f32.s32 %f0, %x0; add.f32 %f0, %f0, 0f3F000000; cvt.rn.f32.s32 %f1, %x1; add.f32 %f1, %f1, 0f3F000000;
    tex.2d.v4.u32.f32 {%v0, %v1, %v2, %v3}, [words, {%f0, %f1}];
    mad.lo.s32 %x0, %x1, %x2, %x0; mul.wide.s32 %a1, %x0, 4; add.u64 %a0, %a0, %a1; st.global.u32 [%a0], %v0; ret;
}
.visible .entry add(.param .u32 value) {
    .reg .s32 %x<2>; .reg .u32 %v<2>;
    ld.param.u32 %v1, [value]; mov.u32 %x0, %tid.x; shl.b32 %x0, %x0, 2; mov.u32 %x1, %tid.y;
    suld.b.2d.b32.trap %v0, [squares, {%x0, %x1}]; add.u32 %v0, %v0, %v1;
    sust.b.2d.b32.trap [squares, {%x0, %x1}], %v0; ret;
}
)";

std::vector<unsigned> numbers(size_t count, unsigned first) {
    std::vector<unsigned> values(count);
    for (size_t i = 0; i < count; ++i) {
        values[i] = first + static_cast<unsigned>(i);
    }
    return values;
}

// What a launch of `width` x `height` threads writes.
std::vector<unsigned> run(CUfunction function, unsigned width, unsigned height) {
    std::vector<unsigned> seen(static_cast<size_t>(width) * height);
    CUdeviceptr out = 0;
    DRIVER_OK(cuMemAlloc(&out, seen.size() * sizeof(unsigned)));
    void* parameters[] = {&out};
    DRIVER_OK(cuLaunchKernel(function, 1, 1, 1, width, height, 1, 0, nullptr, parameters, nullptr));
    DRIVER_OK(cuMemcpyDtoH(seen.data(), out, seen.size() * sizeof(unsigned)));
    DRIVER_OK(cuMemFree(out));
    return seen;
}

CUarray square(const std::vector<unsigned>& values, unsigned flags) {
    const CUDA_ARRAY3D_DESCRIPTOR shape{8, 8, 0, CU_AD_FORMAT_UNSIGNED_INT32, 1, flags};
    CUarray array = nullptr;
    DRIVER_OK(cuArray3DCreate(&array, &shape));
    CUDA_MEMCPY2D copy{};
    copy.srcMemoryType = CU_MEMORYTYPE_HOST;
    copy.srcHost = values.data();
    copy.srcPitch = copy.WidthInBytes = 8 * sizeof(unsigned);
    copy.Height = 8;
    copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
    copy.dstArray = array;
    DRIVER_OK(cuMemcpy2D(&copy));
    return array;
}

void initial_values(CUtexref reference) {
    CUaddress_mode mode{};
    CUfilter_mode filter{};
    CUarray_format format{};
    int channels = 0, anisotropy = -1;
    unsigned flags = 99;
    float bias = -1, least = -1, most = -1, color[4] = {9, 9, 9, 9};
    DRIVER_OK(cuTexRefGetAddressMode(&mode, reference, 2));
    DRIVER_OK(cuTexRefGetFilterMode(&filter, reference));
    DRIVER_OK(cuTexRefGetFormat(&format, &channels, reference));
    DRIVER_OK(cuTexRefGetFlags(&flags, reference));
    DRIVER_OK(cuTexRefGetMaxAnisotropy(&anisotropy, reference));
    DRIVER_OK(cuTexRefGetMipmapFilterMode(&filter, reference));
    DRIVER_OK(cuTexRefGetMipmapLevelBias(&bias, reference));
    DRIVER_OK(cuTexRefGetMipmapLevelClamp(&least, &most, reference));
    DRIVER_OK(cuTexRefGetBorderColor(color, reference));
    check(mode == CU_TR_ADDRESS_MODE_CLAMP && filter == CU_TR_FILTER_MODE_POINT && format == CU_AD_FORMAT_FLOAT &&
              channels == 1 && flags == 0 && anisotropy == 0 && bias == 0 && least == 0 && most == 0 && color[3] == 0,
          "what a reference is at first");
    CUdeviceptr address = 0;
    CUarray array = nullptr;
    CUmipmappedArray levels = nullptr;
    check_result(cuTexRefGetAddress(&address, reference), CUDA_ERROR_INVALID_VALUE, "no address");
    check_result(cuTexRefGetArray(&array, reference), CUDA_ERROR_INVALID_VALUE, "no array");
    check_result(cuTexRefGetMipmappedArray(&levels, reference), CUDA_ERROR_INVALID_VALUE, "no mipmapped array");
    check_result(cuTexRefGetAddressMode(&mode, reference, 3), CUDA_ERROR_INVALID_VALUE, "no fourth dimension");
}

void set_values(CUtexref reference) {
    CUfilter_mode filter{};
    int anisotropy = 0;
    float bias = 0, least = 0, most = 0, color[4] = {1, 2, 3, 4}, color_seen[4] = {};
    DRIVER_OK(cuTexRefSetAddressMode(reference, 0, CU_TR_ADDRESS_MODE_CLAMP));
    DRIVER_OK(cuTexRefSetFilterMode(reference, CU_TR_FILTER_MODE_LINEAR));
    DRIVER_OK(cuTexRefGetFilterMode(&filter, reference));
    DRIVER_OK(cuTexRefSetMipmapFilterMode(reference, CU_TR_FILTER_MODE_LINEAR));
    DRIVER_OK(cuTexRefSetMaxAnisotropy(reference, 4));
    DRIVER_OK(cuTexRefGetMaxAnisotropy(&anisotropy, reference));
    DRIVER_OK(cuTexRefSetMipmapLevelBias(reference, 1.5f));
    DRIVER_OK(cuTexRefGetMipmapLevelBias(&bias, reference));
    DRIVER_OK(cuTexRefSetMipmapLevelClamp(reference, 1, 2));
    DRIVER_OK(cuTexRefGetMipmapLevelClamp(&least, &most, reference));
    DRIVER_OK(cuTexRefSetBorderColor(reference, color));
    DRIVER_OK(cuTexRefGetBorderColor(color_seen, reference));
    check(filter == CU_TR_FILTER_MODE_LINEAR && anisotropy == 4 && bias == 1.5f && least == 1 && most == 2 &&
              color_seen[0] == 1 && color_seen[3] == 4,
          "what was set");
    check_result(cuTexRefSetFlags(reference, 0xff), CUDA_ERROR_INVALID_VALUE, "unknown flags");
    check_result(cuTexRefSetFormat(reference, CU_AD_FORMAT_FLOAT, 3), CUDA_ERROR_INVALID_VALUE, "three channels");
}

}  // namespace

void texture_references() {
    const Module module(kCode);
    CUtexref reference = nullptr, again = nullptr;
    CUsurfref surface = nullptr;
    DRIVER_OK(cuModuleGetTexRef(&reference, module.get(), "words"));
    DRIVER_OK(cuModuleGetTexRef(&again, module.get(), "words"));
    check(reference == again, "a reference found twice");
    check_result(cuModuleGetTexRef(&again, module.get(), "squares"), CUDA_ERROR_NOT_FOUND, "a surface is no texture");
    check_result(cuModuleGetSurfRef(&surface, module.get(), "words"), CUDA_ERROR_NOT_FOUND, "a texture is no surface");
    initial_values(reference);

    CUdeviceptr memory = 0, address = 0;
    CUarray array = nullptr;
    size_t offset = 99;
    const std::vector<unsigned> values = numbers(64, 100);
    DRIVER_OK(cuMemAlloc(&memory, 4096));
    DRIVER_OK(cuMemcpyHtoD(memory, values.data(), 256));
    DRIVER_OK(cuMemcpyHtoD(memory + 512, numbers(64, 200).data(), 256));
    DRIVER_OK(cuTexRefSetFormat(reference, CU_AD_FORMAT_UNSIGNED_INT32, 1));
    DRIVER_OK(cuTexRefSetFlags(reference, CU_TRSF_READ_AS_INTEGER));
    DRIVER_OK(cuTexRefSetAddress(&offset, reference, memory, 256));
    check(offset == 0 && run(module.function("fetch"), 32, 1) == numbers(32, 100), "a kernel reads linear memory");
    DRIVER_OK(cuTexRefGetAddress(&address, reference));
    check(address == memory, "the address of that memory");
    DRIVER_OK(cuTexRefSetAddress(&offset, reference, memory + 4, 252));
    DRIVER_OK(cuTexRefGetAddress(&address, reference));
    check(offset == 4 && address == memory, "an address that is not aligned: %zu bytes off", offset);
    check_result(cuTexRefSetAddress(nullptr, reference, memory + 4, 252), CUDA_ERROR_INVALID_VALUE,
                 "the same without a place for the offset");
    const CUDA_ARRAY_DESCRIPTOR flat{8, 8, CU_AD_FORMAT_UNSIGNED_INT32, 1};
    DRIVER_OK(cuTexRefSetAddress2D(reference, &flat, memory, 32));
    check(run(module.function("sample"), 8, 8) == numbers(64, 100), "a kernel reads rows of memory");
    check_result(cuTexRefSetAddress2D(reference, &flat, memory, 60), CUDA_ERROR_INVALID_VALUE, "rows of odd length");
    DRIVER_OK(exported<decltype(&cuTexRefSetAddress2D)>("cuTexRefSetAddress2D_v2")(reference, &flat, memory + 512, 32));
    check(run(module.function("sample"), 8, 8) == numbers(64, 200), "the earlier form does the same");

    CUarray const squares = square(numbers(64, 7), 0);
    DRIVER_OK(cuTexRefSetArray(reference, squares, CU_TRSA_OVERRIDE_FORMAT));
    DRIVER_OK(cuTexRefGetArray(&array, reference));
    check(array == squares, "the array of a reference");
    check(run(module.function("sample"), 8, 8) == numbers(64, 7), "a kernel reads the array");
    DRIVER_OK(cuParamSetTexRef(module.function("sample"), CU_PARAM_TR_DEFAULT, reference));
    const CUDA_ARRAY3D_DESCRIPTOR shape{8, 8, 0, CU_AD_FORMAT_FLOAT, 1, 0};
    CUmipmappedArray levels = nullptr, levels_seen = nullptr;
    DRIVER_OK(cuMipmappedArrayCreate(&levels, &shape, 2));
    DRIVER_OK(cuTexRefSetMipmappedArray(reference, levels, CU_TRSA_OVERRIDE_FORMAT));
    DRIVER_OK(cuTexRefGetMipmappedArray(&levels_seen, reference));
    check(levels_seen == levels, "the mipmapped array of a reference");
    set_values(reference);
    DRIVER_OK(cuMipmappedArrayDestroy(levels));
    DRIVER_OK(cuArrayDestroy(squares));
    DRIVER_OK(cuMemFree(memory));
}

void surface_references() {
    const Module module(kCode);
    CUsurfref reference = nullptr;
    CUarray array = nullptr;
    DRIVER_OK(cuModuleGetSurfRef(&reference, module.get(), "squares"));
    check_result(cuSurfRefGetArray(&array, reference), CUDA_ERROR_INVALID_VALUE, "a surface without an array");
    CUarray const readable = square(numbers(64, 1), 0), writable = square(numbers(64, 1), CUDA_ARRAY3D_SURFACE_LDST);
    check_result(cuSurfRefSetArray(reference, readable, 0), CUDA_ERROR_INVALID_VALUE, "an array that is only read");
    DRIVER_OK(cuSurfRefSetArray(reference, writable, 0));
    DRIVER_OK(cuSurfRefGetArray(&array, reference));
    check(array == writable, "the array of a surface");
    DRIVER_OK(launch(module.function("add"), 1, 8, nullptr, 10u));  // its first row
    std::vector<unsigned> seen(8);
    CUDA_MEMCPY2D copy{};
    copy.srcMemoryType = CU_MEMORYTYPE_ARRAY;
    copy.srcArray = writable;
    copy.dstMemoryType = CU_MEMORYTYPE_HOST;
    copy.dstHost = seen.data();
    copy.dstPitch = copy.WidthInBytes = 32;
    copy.Height = 1;
    DRIVER_OK(cuMemcpy2D(&copy));
    check(seen == numbers(8, 11), "a kernel changes the array");
    DRIVER_OK(cuArrayDestroy(readable));
    DRIVER_OK(cuArrayDestroy(writable));
}

void references_of_the_program() {
    CUtexref reference = nullptr;
    CUfilter_mode filter{};
    DRIVER_OK(cuTexRefCreate(&reference));
    DRIVER_OK(cuTexRefSetFilterMode(reference, CU_TR_FILTER_MODE_LINEAR));
    DRIVER_OK(cuTexRefGetFilterMode(&filter, reference));
    check(filter == CU_TR_FILTER_MODE_LINEAR, "a reference that the program made");
    DRIVER_OK(cuTexRefDestroy(reference));
    check_result(cuTexRefGetFilterMode(&filter, nullptr), CUDA_ERROR_INVALID_HANDLE, "no reference");
}

}  // namespace gpupool::programs
