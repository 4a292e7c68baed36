// Arrays of every shape, mipmapped arrays, textures and surfaces over them, linear textures of device and host memory,
// texture and surface references, sparse arrays, tensor maps.
#include "tests/gpu/arrays.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <vector>

#include "tests/gpu/images.h"

using namespace gpupool::programs;

namespace {

CUDA_ARRAY3D_DESCRIPTOR words(size_t width, size_t height, size_t depth, unsigned flags = 0) {
    return {width, height, depth, CU_AD_FORMAT_UNSIGNED_INT32, 1, flags};
}

std::vector<unsigned> numbers(size_t count, unsigned first) {
    std::vector<unsigned> values(count);
    for (size_t i = 0; i < count; ++i) {
        values[i] = first + static_cast<unsigned>(i);
    }
    return values;
}

void copy_square(CUarray array, std::vector<unsigned>& host, size_t width, bool to_array) {
    CUDA_MEMCPY2D copy{};
    copy.WidthInBytes = width * sizeof(unsigned);
    copy.Height = width;
    copy.srcMemoryType = to_array ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_ARRAY;
    copy.dstMemoryType = to_array ? CU_MEMORYTYPE_ARRAY : CU_MEMORYTYPE_HOST;
    copy.srcHost = copy.dstHost = host.data();
    copy.srcArray = copy.dstArray = array;
    copy.srcPitch = copy.dstPitch = copy.WidthInBytes;
    DRIVER_OK(cuMemcpy2D(&copy));
}

void shapes() {
    const struct {
        const char* name;
        CUDA_ARRAY3D_DESCRIPTOR shape;
        CUresult result;
    } cases[] = {
        {"a line", words(64, 0, 0), CUDA_SUCCESS},
        {"a square", words(64, 64, 0), CUDA_SUCCESS},
        {"a block", words(8, 4, 3), CUDA_SUCCESS},
        {"layers", words(8, 4, 3, CUDA_ARRAY3D_LAYERED), CUDA_SUCCESS},
        {"layers of lines", words(8, 0, 3, CUDA_ARRAY3D_LAYERED), CUDA_SUCCESS},
        {"a cube", words(8, 8, 6, CUDA_ARRAY3D_CUBEMAP), CUDA_SUCCESS},
        {"a cube of five faces", words(8, 8, 5, CUDA_ARRAY3D_CUBEMAP), CUDA_ERROR_INVALID_VALUE},
        {"no width", words(0, 4, 0), CUDA_ERROR_INVALID_VALUE},
        {"three channels", {8, 8, 0, CU_AD_FORMAT_FLOAT, 3, 0}, CUDA_ERROR_INVALID_VALUE},
    };
    for (const auto& one : cases) {
        CUarray array = nullptr;
        if (!check_result(cuArray3DCreate(&array, &one.shape), one.result, one.name) || array == nullptr) {
            continue;
        }
        CUDA_ARRAY3D_DESCRIPTOR seen{};
        DRIVER_OK(cuArray3DGetDescriptor(&seen, array));
        check(seen.Width == one.shape.Width && seen.Height == one.shape.Height && seen.Depth == one.shape.Depth &&
                  seen.Format == one.shape.Format && seen.NumChannels == one.shape.NumChannels &&
                  seen.Flags == one.shape.Flags,
              "its description: %zu x %zu x %zu", seen.Width, seen.Height, seen.Depth);
        CUDA_ARRAY_DESCRIPTOR flat{};
        DRIVER_OK(cuArrayGetDescriptor(&flat, array));
        check(flat.Width == seen.Width && flat.Height == seen.Height, "the same without depth");
        DRIVER_OK(cuArrayDestroy(array));
    }
}

// A copy of the block's three slices to and from host memory. `in_stream`: both wait in a stream.
void copy_block(CUarray array, CUstream stream, bool in_stream) {
    const std::vector<unsigned> values = numbers(96, in_stream ? 1000 : 1);
    std::vector<unsigned> seen(96);
    CUDA_MEMCPY3D copy{};
    copy.WidthInBytes = 8 * sizeof(unsigned);
    copy.Height = 4;
    copy.Depth = 3;
    copy.srcMemoryType = CU_MEMORYTYPE_HOST;
    copy.srcHost = values.data();
    copy.srcPitch = copy.WidthInBytes;
    copy.srcHeight = 4;
    copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
    copy.dstArray = array;
    DRIVER_OK(in_stream ? cuMemcpy3DAsync(&copy, stream) : cuMemcpy3D(&copy));
    CUDA_MEMCPY3D back{};
    back.WidthInBytes = copy.WidthInBytes;
    back.Height = 4;
    back.Depth = 3;
    back.srcMemoryType = CU_MEMORYTYPE_ARRAY;
    back.srcArray = array;
    back.dstMemoryType = CU_MEMORYTYPE_HOST;
    back.dstHost = seen.data();
    back.dstPitch = copy.WidthInBytes;
    back.dstHeight = 4;
    DRIVER_OK(in_stream ? cuMemcpy3DAsync(&back, stream) : cuMemcpy3D(&back));
    DRIVER_OK(cuStreamSynchronize(stream));
    check(values == seen, "a block of 8 x 4 x 3 words, there and back%s", in_stream ? ", in a stream" : "");
}

void copies() {
    CUstream stream = nullptr;
    DRIVER_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CUarray block = nullptr, line = nullptr;
    const CUDA_ARRAY3D_DESCRIPTOR shape = words(8, 4, 3);
    DRIVER_OK(cuArray3DCreate(&block, &shape));
    copy_block(block, stream, false);
    copy_block(block, stream, true);
    DRIVER_OK(cuArrayDestroy(block));

    const CUDA_ARRAY_DESCRIPTOR of_line{32, 0, CU_AD_FORMAT_UNSIGNED_INT32, 1};
    DRIVER_OK(cuArrayCreate(&line, &of_line));
    const std::vector<unsigned> values = numbers(16, 7);
    std::vector<unsigned> seen(16);
    DRIVER_OK(cuMemcpyHtoAAsync(line, 16, values.data(), 64, stream));
    DRIVER_OK(cuMemcpyAtoHAsync(seen.data(), line, 16, 64, stream));
    DRIVER_OK(cuStreamSynchronize(stream));
    check(values == seen, "part of a line, there and back in a stream");
    DRIVER_OK(cuArrayDestroy(line));
    DRIVER_OK(cuStreamDestroy(stream));
}

void read_levels(const Module& module, CUmipmappedArray levels) {
    CUDA_RESOURCE_DESC resource{};
    resource.resType = CU_RESOURCE_TYPE_MIPMAPPED_ARRAY;
    resource.res.mipmap.hMipmappedArray = levels;
    CUDA_TEXTURE_DESC description{};
    description.flags = CU_TRSF_READ_AS_INTEGER | CU_TRSF_NORMALIZED_COORDINATES;
    description.maxMipmapLevelClamp = 4;
    CUtexObject texture = 0;
    DRIVER_OK(cuTexObjectCreate(&texture, &resource, &description, nullptr));
    CUdeviceptr out = 0;
    DRIVER_OK(cuMemAlloc(&out, 256 * sizeof(unsigned)));
    for (unsigned level = 0; level < 3; ++level) {
        const unsigned width = 16u >> level;
        auto number = static_cast<float>(level);
        void* parameters[] = {&out, &texture, &number};
        DRIVER_OK(
            cuLaunchKernel(module.function("read_level"), 1, 1, 1, width, width, 1, 0, nullptr, parameters, nullptr));
        std::vector<unsigned> seen(static_cast<size_t>(width) * width);
        DRIVER_OK(cuMemcpyDtoH(seen.data(), out, seen.size() * sizeof(unsigned)));
        check(seen == numbers(seen.size(), 1000 * level), "a kernel reads level %u", level);
    }
    DRIVER_OK(cuMemFree(out));
    DRIVER_OK(cuTexObjectDestroy(texture));
}

void mipmapped() {
    const Module module(kernels_ptx().data);
    const CUDA_ARRAY3D_DESCRIPTOR shape = words(16, 16, 0);
    CUmipmappedArray levels = nullptr;
    DRIVER_OK(cuMipmappedArrayCreate(&levels, &shape, 3));
    for (unsigned level = 0; level < 3; ++level) {
        const size_t width = 16u >> level;
        CUarray array = nullptr;
        DRIVER_OK(cuMipmappedArrayGetLevel(&array, levels, level));
        std::vector<unsigned> values = numbers(width * width, 1000 * level);
        copy_square(array, values, width, true);
    }
    read_levels(module, levels);
    CUarray level = nullptr, again = nullptr;
    DRIVER_OK(cuMipmappedArrayGetLevel(&level, levels, 1));
    DRIVER_OK(cuArrayDestroy(level));  // has no effect
    DRIVER_OK(cuMipmappedArrayGetLevel(&again, levels, 1));
    check(level == again, "a level cannot be destroyed");
    DRIVER_OK(cuMipmappedArrayDestroy(levels));
}

void surfaces() {
    const Module module(kernels_ptx().data);
    const CUDA_ARRAY3D_DESCRIPTOR shape = words(16, 16, 0, CUDA_ARRAY3D_SURFACE_LDST);
    CUarray array = nullptr;
    DRIVER_OK(cuArray3DCreate(&array, &shape));
    std::vector<unsigned> values = numbers(256, 5), seen(256);
    copy_square(array, values, 16, true);
    CUDA_RESOURCE_DESC resource{};
    resource.resType = CU_RESOURCE_TYPE_ARRAY;
    resource.res.array.hArray = array;
    CUsurfObject surface = 0;
    DRIVER_OK(cuSurfObjectCreate(&surface, &resource));
    unsigned more = 10;
    void* parameters[] = {&surface, &more};
    DRIVER_OK(cuLaunchKernel(module.function("add_to_surface"), 1, 1, 1, 16, 16, 1, 0, nullptr, parameters, nullptr));
    copy_square(array, seen, 16, false);
    check(seen == numbers(256, 15), "a kernel changes an array through a surface");
    DRIVER_OK(cuSurfObjectDestroy(surface));
    DRIVER_OK(cuArrayDestroy(array));
}

// A texture of host memory that the program changes between launches.
void linear_texture(const Module& module, const char* what, unsigned* memory) {
    CUDA_RESOURCE_DESC resource{};
    resource.resType = CU_RESOURCE_TYPE_LINEAR;
    resource.res.linear = {reinterpret_cast<CUdeviceptr>(memory), CU_AD_FORMAT_UNSIGNED_INT32, 1, 4096};
    CUDA_TEXTURE_DESC description{};
    description.flags = CU_TRSF_READ_AS_INTEGER;
    CUtexObject texture = 0;
    for (unsigned i = 0; i < 32; ++i) {
        memory[i] = i;
    }
    if (!check_result(cuTexObjectCreate(&texture, &resource, &description, nullptr), CUDA_SUCCESS, what)) {
        return;
    }
    CUdeviceptr out = 0;
    DRIVER_OK(cuMemAlloc(&out, 32 * sizeof(unsigned)));
    for (unsigned first : {0u, 500u}) {
        for (unsigned i = 0; i < 32; ++i) {
            memory[i] = first + i;
        }
        DRIVER_OK(launch(module.function("read_texels"), 1, 32, nullptr, out, texture));
        std::vector<unsigned> seen(32);
        DRIVER_OK(cuMemcpyDtoH(seen.data(), out, 32 * sizeof(unsigned)));
        check(seen == numbers(32, first), "a kernel reads it, from %u on", first);
    }
    DRIVER_OK(cuMemFree(out));
    DRIVER_OK(cuTexObjectDestroy(texture));
}

void host_memory() {
    const Module module(kernels_ptx().data);
    constexpr size_t kBytes = 64u << 10;
    void *allocated = nullptr, *mapped = nullptr;
    DRIVER_OK(cuMemAllocHost(&allocated, kBytes));
    linear_texture(module, "a linear texture of pinned memory", static_cast<unsigned*>(allocated));
    DRIVER_OK(cuMemFreeHost(allocated));
    DRIVER_OK(cuMemHostAlloc(&mapped, kBytes, CU_MEMHOSTALLOC_DEVICEMAP));
    linear_texture(module, "a linear texture of mapped memory", static_cast<unsigned*>(mapped));
    DRIVER_OK(cuMemFreeHost(mapped));
    void* const registered = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    DRIVER_OK(cuMemHostRegister(registered, kBytes, CU_MEMHOSTREGISTER_DEVICEMAP));
    linear_texture(module, "a linear texture of registered memory", static_cast<unsigned*>(registered));
    DRIVER_OK(cuMemHostUnregister(registered));
    munmap(registered, kBytes);
}

void largest_line(const Device& device) {
    size_t width = 0, of_vectors = 0;
    DRIVER_OK(cuDeviceGetTexture1DLinearMaxWidth(&width, CU_AD_FORMAT_FLOAT, 1, device.device()));
    DRIVER_OK(cuDeviceGetTexture1DLinearMaxWidth(&of_vectors, CU_AD_FORMAT_FLOAT, 4, device.device()));
    check(width >= of_vectors && of_vectors > 0, "the longest linear textures: %zu words, %zu vectors", width,
          of_vectors);
    check_result(cuDeviceGetTexture1DLinearMaxWidth(&width, CU_AD_FORMAT_FLOAT, 3, device.device()),
                 CUDA_ERROR_INVALID_VALUE, "of three channels");
}

}  // namespace

int main(int argc, char** argv) {
    Program program("arrays", argc, argv);
    const Device device;
    program.section("shapes", shapes);
    program.section("copies", copies);
    program.section("mipmapped", mipmapped);
    program.section("surfaces", surfaces);
    program.section("host_memory", host_memory);
    program.section("largest_line", [&] { largest_line(device); });
    program.section("texture_references", texture_references);
    program.section("surface_references", surface_references);
    program.section("references_of_the_program", references_of_the_program);
    program.section("requirements", [&] { memory_requirements(device); });
    program.section(
        "sparse", [&] { sparse_arrays(device); }, !device.is_software());
    program.section("planes", planes, !device.is_software());
    program.section("tensor_maps", tensor_maps, !device.is_software());
    return program.finish();
}
