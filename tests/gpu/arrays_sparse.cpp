// What arrays need of memory, arrays that memory is mapped into tile by tile, tensor maps.
#include <cstring>
#include <vector>

#include "tests/gpu/arrays.h"

namespace gpupool::programs {
namespace {

constexpr size_t kPoolBytes = 4u << 20;

CUDA_ARRAY3D_DESCRIPTOR square(unsigned flags) {
    return {1024, 1024, 0, CU_AD_FORMAT_FLOAT, 1, flags};
}

CUmemGenericAllocationHandle memory_of_tiles(const Device& device, size_t bytes) {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = device.device();
    properties.allocFlags.usage = CU_MEM_CREATE_USAGE_TILE_POOL;
    CUmemGenericAllocationHandle handle = 0;
    DRIVER_OK(cuMemCreate(&handle, bytes, &properties, 0));
    return handle;
}

CUarrayMapInfo mapping(CUarray array, unsigned x, unsigned width, unsigned height,
                       CUmemGenericAllocationHandle memory) {
    CUarrayMapInfo info{};
    info.resourceType = CU_RESOURCE_TYPE_ARRAY;
    info.resource.array = array;
    info.subresourceType = CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_SPARSE_LEVEL;
    info.subresource.sparseLevel.offsetX = x;
    info.subresource.sparseLevel.extentWidth = width;
    info.subresource.sparseLevel.extentHeight = height;
    info.subresource.sparseLevel.extentDepth = 1;
    info.memOperationType = memory == 0 ? CU_MEM_OPERATION_TYPE_UNMAP : CU_MEM_OPERATION_TYPE_MAP;
    info.memHandleType = CU_MEM_HANDLE_TYPE_GENERIC;
    info.memHandle.memHandle = memory;
    info.deviceBitMask = 1;
    return info;
}

// Copies a row of the array to or from `host`, from element `x` on.
void copy_row(CUarray array, size_t x, std::vector<float>& host, bool to_array) {
    CUDA_MEMCPY2D copy{};
    copy.WidthInBytes = host.size() * sizeof(float);
    copy.Height = 1;
    copy.srcMemoryType = to_array ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_ARRAY;
    copy.dstMemoryType = to_array ? CU_MEMORYTYPE_ARRAY : CU_MEMORYTYPE_HOST;
    copy.srcHost = copy.dstHost = host.data();
    copy.srcArray = copy.dstArray = array;
    copy.srcXInBytes = to_array ? 0 : x * sizeof(float);
    copy.dstXInBytes = to_array ? x * sizeof(float) : 0;
    DRIVER_OK(cuMemcpy2D(&copy));
}

bool keeps_a_row(CUarray array, size_t x, float value) {
    std::vector<float> written(64, value), seen(64);
    copy_row(array, x, written, true);
    copy_row(array, x, seen, false);
    return written == seen;
}

void map_and_unmap(const Device& device, CUarray array, const CUDA_ARRAY_SPARSE_PROPERTIES& properties) {
    const unsigned width = properties.tileExtent.width, height = properties.tileExtent.height;
    CUmemGenericAllocationHandle const memory = memory_of_tiles(device, kPoolBytes);
    CUarrayMapInfo tile = mapping(array, width, width, height, memory);
    DRIVER_OK(cuMemMapArrayAsync(&tile, 1, nullptr));
    DRIVER_OK(cuCtxSynchronize());
    check(keeps_a_row(array, width, 3), "a mapped tile keeps its content");
    CUarrayMapInfo wrong = mapping(array, 1, width, height, memory);
    check_result(cuMemMapArrayAsync(&wrong, 1, nullptr), CUDA_ERROR_INVALID_VALUE, "beside the tiles");
    wrong = mapping(array, width, width, height, memory);
    wrong.flags = 1;
    check_result(cuMemMapArrayAsync(&wrong, 1, nullptr), CUDA_ERROR_INVALID_VALUE, "with flags");
    CUarrayMapInfo whole = mapping(array, 0, 1024, 1024, memory);
    DRIVER_OK(cuMemMapArrayAsync(&whole, 1, nullptr));
    DRIVER_OK(cuMemRelease(memory));
    check(keeps_a_row(array, 0, 4) && keeps_a_row(array, 960, 5), "the whole array, mapped in one piece");
    whole = mapping(array, 0, 1024, 1024, 0);
    DRIVER_OK(cuMemMapArrayAsync(&whole, 1, nullptr));
    DRIVER_OK(cuCtxSynchronize());
}

}  // namespace

void memory_requirements(const Device& device) {
    const CUDA_ARRAY3D_DESCRIPTOR shape = square(0);
    CUarray array = nullptr;
    CUmipmappedArray levels = nullptr;
    DRIVER_OK(cuArray3DCreate(&array, &shape));
    DRIVER_OK(cuMipmappedArrayCreate(&levels, &shape, 3));
    CUDA_ARRAY_MEMORY_REQUIREMENTS needed{};
    CUDA_ARRAY_SPARSE_PROPERTIES properties{};
    check_result(cuArrayGetMemoryRequirements(&needed, array, device.device()), CUDA_ERROR_INVALID_VALUE,
                 "what an array needs that has its memory");
    check_result(cuMipmappedArrayGetMemoryRequirements(&needed, levels, device.device()), CUDA_ERROR_INVALID_VALUE,
                 "the same of a mipmapped one");
    check_result(cuArrayGetSparseProperties(&properties, array), CUDA_ERROR_INVALID_VALUE,
                 "tiles of an array that is not sparse");
    check_result(cuMipmappedArrayGetSparseProperties(&properties, levels), CUDA_ERROR_INVALID_VALUE,
                 "the same of a mipmapped one");
    CUarray plane = nullptr;
    check_result(cuArrayGetPlane(&plane, array, 0), CUDA_ERROR_INVALID_VALUE, "a plane of an array that has none");
    DRIVER_OK(cuMipmappedArrayDestroy(levels));
    DRIVER_OK(cuArrayDestroy(array));
    if (device.attribute(CU_DEVICE_ATTRIBUTE_DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED) == 0) {
        return;
    }
    const CUDA_ARRAY3D_DESCRIPTOR deferred = square(CUDA_ARRAY3D_DEFERRED_MAPPING);
    DRIVER_OK(cuArray3DCreate(&array, &deferred));
    DRIVER_OK(cuMipmappedArrayCreate(&levels, &deferred, 3));
    DRIVER_OK(cuArrayGetMemoryRequirements(&needed, array, device.device()));
    check(needed.size >= kPoolBytes && needed.alignment > 0, "an array without memory needs %zu bytes", needed.size);
    const size_t of_one = needed.size;
    DRIVER_OK(cuMipmappedArrayGetMemoryRequirements(&needed, levels, device.device()));
    check(needed.size > of_one, "a mipmapped one %zu", needed.size);
    DRIVER_OK(cuMipmappedArrayDestroy(levels));
    DRIVER_OK(cuArrayDestroy(array));
}

void planes() {
    const CUDA_ARRAY3D_DESCRIPTOR shape{64, 64, 0, CU_AD_FORMAT_NV12, 3, CUDA_ARRAY3D_VIDEO_ENCODE_DECODE};
    CUarray array = nullptr, first = nullptr, second = nullptr, again = nullptr;
    DRIVER_OK(cuArray3DCreate(&array, &shape));
    DRIVER_OK(cuArrayGetPlane(&first, array, 0));
    DRIVER_OK(cuArrayGetPlane(&second, array, 1));
    DRIVER_OK(cuArrayGetPlane(&again, array, 0));
    check(first == again && first != second, "a plane has one handle");
    check_result(cuArrayGetPlane(&again, array, 2), CUDA_ERROR_INVALID_VALUE, "a third plane of two");
    DRIVER_OK(cuArrayDestroy(array));
}

void sparse_arrays(const Device& device) {
    if (device.attribute(CU_DEVICE_ATTRIBUTE_SPARSE_CUDA_ARRAY_SUPPORTED) == 0) {
        note("this device has no sparse arrays");
        return;
    }
    const CUDA_ARRAY3D_DESCRIPTOR shape = square(CUDA_ARRAY3D_SPARSE);
    CUarray array = nullptr;
    CUmipmappedArray levels = nullptr;
    CUDA_ARRAY_SPARSE_PROPERTIES properties{};
    DRIVER_OK(cuArray3DCreate(&array, &shape));
    DRIVER_OK(cuArrayGetSparseProperties(&properties, array));
    const unsigned width = properties.tileExtent.width, height = properties.tileExtent.height;
    check(width * height * sizeof(float) == 65536, "tiles of %u x %u, which take 64 KiB", width, height);
    map_and_unmap(device, array, properties);
    DRIVER_OK(cuArrayDestroy(array));

    DRIVER_OK(cuMipmappedArrayCreate(&levels, &shape, 11));
    DRIVER_OK(cuMipmappedArrayGetSparseProperties(&properties, levels));
    check(properties.miptailSize > 0 && properties.miptailFirstLevel > 0,
          "levels from %u on share a tail of %llu bytes", properties.miptailFirstLevel, properties.miptailSize);
    CUmemGenericAllocationHandle const memory = memory_of_tiles(device, kPoolBytes);
    CUarrayMapInfo tail{};
    tail.resourceType = CU_RESOURCE_TYPE_MIPMAPPED_ARRAY;
    tail.resource.mipmap = levels;
    tail.subresourceType = CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL;
    tail.subresource.miptail = {0, 0, properties.miptailSize};
    tail.memOperationType = CU_MEM_OPERATION_TYPE_MAP;
    tail.memHandle.memHandle = memory;
    tail.deviceBitMask = 1;
    DRIVER_OK(cuMemMapArrayAsync(&tail, 1, nullptr));
    DRIVER_OK(cuCtxSynchronize());
    DRIVER_OK(cuMipmappedArrayGetLevel(&array, levels, properties.miptailFirstLevel));
    CUDA_ARRAY_DESCRIPTOR seen{};
    DRIVER_OK(cuArrayGetDescriptor(&seen, array));
    std::vector<float> written(seen.Width, 6), read(seen.Width);
    copy_row(array, 0, written, true);
    copy_row(array, 0, read, false);
    check(written == read, "the tail keeps its content");
    DRIVER_OK(cuMipmappedArrayDestroy(levels));
    DRIVER_OK(cuMemRelease(memory));
}

void tensor_maps() {
    CUdeviceptr memory = 0;
    DRIVER_OK(cuMemAlloc(&memory, 1u << 20));
    CUtensorMap map, moved, made_there;
    const cuuint64_t extents[] = {64, 32, 16, 8}, strides[] = {256, 256 * 32, 256 * 32 * 16};
    const cuuint32_t box[] = {16, 8, 4, 2}, steps[] = {1, 1, 1, 1};
    const auto encode = [&](CUtensorMap* to, CUdeviceptr address) {
        return cuTensorMapEncodeTiled(to, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, reinterpret_cast<void*>(address), extents,
                                      strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                                      CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    };
    DRIVER_OK(encode(&map, memory));
    DRIVER_OK(encode(&made_there, memory + 4096));
    moved = map;
    DRIVER_OK(cuTensorMapReplaceAddress(&moved, reinterpret_cast<void*>(memory + 4096)));
    check(memcmp(&moved, &made_there, sizeof moved) == 0, "a map with its address replaced is the one made there");
    check_result(encode(&map, memory + 8), CUDA_ERROR_INVALID_VALUE, "a map of an address that is not aligned");
    const int lower[] = {-1, -1}, upper[] = {1, 1};
    memset(&map, 0, sizeof map);
    DRIVER_OK(cuTensorMapEncodeIm2col(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 4, reinterpret_cast<void*>(memory),
                                      extents, strides, lower, upper, 16, 32, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                      CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                                      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
    check(map.opaque[0] != 0, "a map for im2col");
    const CUresult wide = cuTensorMapEncodeIm2colWide(
        &map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 4, reinterpret_cast<void*>(memory), extents, strides, -1, 1, 16, 32,
        steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_IM2COL_WIDE_MODE_W, CU_TENSOR_MAP_SWIZZLE_128B,
        CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    note("a map for im2col over columns: %s", result_name(wide).c_str());  // needs compute capability 10
    DRIVER_OK(cuMemFree(memory));
}

}  // namespace gpupool::programs
