// Arrays: creating them, and what they are.
#include "server/softgpu/api/array.h"

#include "server/softgpu/api/memory.h"
#include "server/softgpu/graph/capture.h"

namespace gpupool::softgpu {

CUresult place_in_line(CUarray handle, std::size_t offset, std::size_t bytes, std::uint64_t& address) {
    const auto array = state().arrays.find(handle);
    if (array == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    const bool is_line = array->descriptor.Height == 0 && array->descriptor.Depth == 0;
    if (!is_line || offset > array->row_bytes || bytes > array->row_bytes - offset ||
        offset % array->element_bytes != 0 || bytes % array->element_bytes != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    address = array->address + offset;
    return CUDA_SUCCESS;
}

namespace {

constexpr unsigned known_flags = CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_SURFACE_LDST | CUDA_ARRAY3D_CUBEMAP |
                                 CUDA_ARRAY3D_TEXTURE_GATHER | CUDA_ARRAY3D_COLOR_ATTACHMENT;
// As large as a GPU of this capability allows, whatever the number of dimensions.
constexpr std::size_t max_width = 131072, max_height = 131072, max_depth = 16384;

// Bytes of one channel; 0 for formats that the software GPU does not know, planar and compressed ones.
std::size_t channel_bytes(CUarray_format format) {
    switch (format) {
        case CU_AD_FORMAT_UNSIGNED_INT8:
        case CU_AD_FORMAT_SIGNED_INT8: return 1;
        case CU_AD_FORMAT_UNSIGNED_INT16:
        case CU_AD_FORMAT_SIGNED_INT16:
        case CU_AD_FORMAT_HALF: return 2;
        case CU_AD_FORMAT_UNSIGNED_INT32:
        case CU_AD_FORMAT_SIGNED_INT32:
        case CU_AD_FORMAT_FLOAT: return 4;
        default: return 0;
    }
}

bool good_shape(const CUDA_ARRAY3D_DESCRIPTOR& d) {
    if (d.Width == 0 || d.Width > max_width || d.Height > max_height || d.Depth > max_depth) return false;
    if ((d.Flags & ~known_flags) != 0) return false;
    const bool layered = (d.Flags & CUDA_ARRAY3D_LAYERED) != 0;
    // Layers are counted by the depth, also of lines.
    if (layered && d.Depth == 0) return false;
    if (!layered && d.Depth != 0 && d.Height == 0) return false;
    if ((d.Flags & CUDA_ARRAY3D_CUBEMAP) == 0) return true;
    return d.Width == d.Height && (layered ? d.Depth % 6 == 0 : d.Depth == 6);
}

CUresult create(CUarray* result, const CUDA_ARRAY3D_DESCRIPTOR& descriptor) {
    SOFTGPU_CONTEXT(context);
    SOFTGPU_NOT_WHILE_CAPTURING();
    SOFTGPU_NOT_NULL(result);
    const std::size_t channel = channel_bytes(descriptor.Format);
    const unsigned channels = descriptor.NumChannels;
    if (channel == 0 || (channels != 1 && channels != 2 && channels != 4) || !good_shape(descriptor))
        return CUDA_ERROR_INVALID_VALUE;
    auto array = std::make_shared<Array>();
    array->descriptor = descriptor;
    array->context = context.get();
    array->element_bytes = channel * channels;
    array->row_bytes = descriptor.Width * array->element_bytes;
    array->height = std::max<std::size_t>(1, descriptor.Height);
    array->depth = std::max<std::size_t>(1, descriptor.Depth);
    const CUresult error =
        allocate({context.get(), array->row_bytes * array->height * array->depth, MemoryKind::array, 0, nullptr},
                 array->address);
    if (error != CUDA_SUCCESS) return error;
    state().arrays.add(array);
    *result = reinterpret_cast<CUarray>(array.get());
    return CUDA_SUCCESS;
}

}  // namespace
}  // namespace gpupool::softgpu

using namespace gpupool::softgpu;

#define SOFTGPU_ARRAY(handle, name)                \
    SOFTGPU_READY();                               \
    const auto name = state().arrays.find(handle); \
    if (name == nullptr) return CUDA_ERROR_INVALID_HANDLE

extern "C" {

CUresult CUDAAPI cuArrayCreate_v2(CUarray* array, const CUDA_ARRAY_DESCRIPTOR* descriptor) {
    SOFTGPU_NOT_NULL(descriptor);
    return create(array, {descriptor->Width, descriptor->Height, 0, descriptor->Format, descriptor->NumChannels, 0});
}

CUresult CUDAAPI cuArray3DCreate_v2(CUarray* array, const CUDA_ARRAY3D_DESCRIPTOR* descriptor) {
    SOFTGPU_NOT_NULL(descriptor);
    return create(array, *descriptor);
}

CUresult CUDAAPI cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR* descriptor, CUarray handle) {
    SOFTGPU_ARRAY(handle, array);
    SOFTGPU_NOT_NULL(descriptor);
    const auto& all = array->descriptor;
    *descriptor = {all.Width, all.Height, all.Format, all.NumChannels};
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR* descriptor, CUarray handle) {
    SOFTGPU_ARRAY(handle, array);
    SOFTGPU_NOT_NULL(descriptor);
    *descriptor = array->descriptor;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuArrayDestroy(CUarray handle) {
    SOFTGPU_ARRAY(handle, array);
    SOFTGPU_NOT_WHILE_CAPTURING();
    array->context->synchronize();
    if (state().arrays.remove(handle) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    Allocation removed;
    if (state().allocations.remove(array->address, removed)) release_memory(removed);
    return CUDA_SUCCESS;
}

}  // extern "C"
