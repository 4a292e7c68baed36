// Arrays: creation and queries.
#include "server/softgpu/api/array.h"

#include <algorithm>
#include <bit>

#include "server/softgpu/api/memory.h"
#include "server/softgpu/graph/capture.h"

namespace gpupool::softgpu {

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

CUresult place_in_line(CUarray handle, std::size_t offset, std::size_t bytes, std::uint64_t& address) {
    const auto array = state().arrays.find(handle);
    if (array == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    const bool is_line = array->descriptor.Height == 0 && array->descriptor.Depth == 0;
    if (!is_line || offset > array->row_bytes || bytes > array->row_bytes - offset ||
        offset % array->element_bytes != 0 || bytes % array->element_bytes != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    address = array->address + offset;
    return CUDA_SUCCESS;
}

namespace {

constexpr unsigned kKnownFlags = CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_SURFACE_LDST | CUDA_ARRAY3D_CUBEMAP |
                                 CUDA_ARRAY3D_TEXTURE_GATHER | CUDA_ARRAY3D_COLOR_ATTACHMENT;
// The limits of a GPU of this compute capability, whatever the number of dimensions.
constexpr std::size_t kMaxWidth = 131072, kMaxHeight = 131072, kMaxDepth = 16384;

bool good_shape(const CUDA_ARRAY3D_DESCRIPTOR& d) {
    if (d.Width == 0 || d.Width > kMaxWidth || d.Height > kMaxHeight || d.Depth > kMaxDepth) {
        return false;
    }
    if ((d.Flags & ~kKnownFlags) != 0) {
        return false;
    }
    const bool layered = (d.Flags & CUDA_ARRAY3D_LAYERED) != 0;
    // The depth is the number of layers, even of one-dimensional arrays.
    if (layered && d.Depth == 0) {
        return false;
    }
    if (!layered && d.Depth != 0 && d.Height == 0) {
        return false;
    }
    if ((d.Flags & CUDA_ARRAY3D_CUBEMAP) == 0) {
        return true;
    }
    return d.Width == d.Height && (layered ? d.Depth % 6 == 0 : d.Depth == 6);
}

CUresult make(const ContextPtr& context, const CUDA_ARRAY3D_DESCRIPTOR& descriptor, std::shared_ptr<Array>& array) {
    const std::size_t channel = channel_bytes(descriptor.Format);
    const unsigned channels = descriptor.NumChannels;
    if (channel == 0 || (channels != 1 && channels != 2 && channels != 4) || !good_shape(descriptor)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    array = std::make_shared<Array>();
    array->descriptor = descriptor;
    array->context = context.get();
    array->element_bytes = channel * channels;
    array->row_bytes = descriptor.Width * array->element_bytes;
    array->height = std::max<std::size_t>(1, descriptor.Height);
    array->depth = std::max<std::size_t>(1, descriptor.Depth);
    const CUresult error =
        allocate({context.get(), array->row_bytes * array->height * array->depth, MemoryKind::array, 0, nullptr},
                 array->address);
    if (error == CUDA_SUCCESS) {
        state().arrays.add(array);
    }
    return error;
}

CUresult create(CUarray* result, const CUDA_ARRAY3D_DESCRIPTOR& descriptor) {
    SOFTGPU_CONTEXT(context);
    SOFTGPU_NOT_WHILE_CAPTURING();
    SOFTGPU_NOT_NULL(result);
    std::shared_ptr<Array> array;
    const CUresult error = make(context, descriptor, array);
    if (error == CUDA_SUCCESS) {
        *result = reinterpret_cast<CUarray>(array.get());
    }
    return error;
}

bool discard(Array& array) {
    if (state().arrays.remove(&array) == nullptr) {
        return false;
    }
    Allocation removed;
    if (state().allocations.remove(array.address, removed)) {
        release_memory(removed);
    }
    return true;
}

Registry<Mipmap>& mipmaps() {
    static Registry<Mipmap>& instance = *new Registry<Mipmap>;
    return instance;
}

// Number of levels down to a single element. Layers and faces are not halved.
unsigned most_levels(const CUDA_ARRAY3D_DESCRIPTOR& d) {
    std::size_t largest = std::max(d.Width, d.Height);
    if ((d.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) == 0) {
        largest = std::max(largest, d.Depth);
    }
    return static_cast<unsigned>(std::bit_width(largest));
}

CUDA_ARRAY3D_DESCRIPTOR level_of(const CUDA_ARRAY3D_DESCRIPTOR& whole, unsigned level) {
    const auto halved = [&](std::size_t extent) { return extent == 0 ? 0 : std::max<std::size_t>(1, extent >> level); };
    CUDA_ARRAY3D_DESCRIPTOR result = whole;
    result.Width = halved(whole.Width);
    result.Height = halved(whole.Height);
    if ((whole.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) == 0) {
        result.Depth = halved(whole.Depth);
    }
    return result;
}

}  // namespace

std::shared_ptr<Mipmap> find_mipmap(CUmipmappedArray handle) {
    return mipmaps().find(handle);
}

void forget_mipmaps(const Context& context) {
    mipmaps().remove_if([&](const Mipmap& mipmap) { return mipmap.context == &context; });
}

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

// No array here lacks its memory, is sparse or has planes.
CUresult CUDAAPI cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS*, CUarray handle, CUdevice) {
    SOFTGPU_ARRAY(handle, array);
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES*, CUarray handle) {
    SOFTGPU_ARRAY(handle, array);
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuArrayGetPlane(CUarray*, CUarray handle, unsigned) {
    SOFTGPU_ARRAY(handle, array);
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS*, CUmipmappedArray handle,
                                                       CUdevice) {
    SOFTGPU_READY();
    return find_mipmap(handle) == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuMipmappedArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES*, CUmipmappedArray handle) {
    SOFTGPU_READY();
    return find_mipmap(handle) == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuArrayDestroy(CUarray handle) {
    SOFTGPU_ARRAY(handle, array);
    SOFTGPU_NOT_WHILE_CAPTURING();
    if (array->is_level) {
        return CUDA_SUCCESS;  // it ends with its mipmapped array
    }
    array->context->synchronize_exclusively();
    return discard(*array) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult CUDAAPI cuMipmappedArrayCreate(CUmipmappedArray* result, const CUDA_ARRAY3D_DESCRIPTOR* descriptor,
                                        unsigned levels) {
    SOFTGPU_CONTEXT(context);
    SOFTGPU_NOT_WHILE_CAPTURING();
    if (result == nullptr || descriptor == nullptr || levels == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    auto mipmap = std::make_shared<Mipmap>();
    mipmap->descriptor = *descriptor;
    mipmap->context = context.get();
    for (unsigned level = 0; level < std::min(levels, most_levels(*descriptor)); ++level) {
        std::shared_ptr<Array> array;
        if (const CUresult error = make(context, level_of(*descriptor, level), array); error != CUDA_SUCCESS) {
            for (const auto& made : mipmap->levels) {
                discard(*made);
            }
            return error;
        }
        array->is_level = true;
        mipmap->levels.push_back(std::move(array));
    }
    if (mipmap->levels.empty()) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    mipmaps().add(mipmap);
    *result = reinterpret_cast<CUmipmappedArray>(mipmap.get());
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMipmappedArrayGetLevel(CUarray* result, CUmipmappedArray handle, unsigned level) {
    SOFTGPU_READY();
    const auto mipmap = find_mipmap(handle);
    if (mipmap == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (result == nullptr || level >= mipmap->levels.size()) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *result = reinterpret_cast<CUarray>(mipmap->levels[level].get());
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMipmappedArrayDestroy(CUmipmappedArray handle) {
    SOFTGPU_READY();
    SOFTGPU_NOT_WHILE_CAPTURING();
    const auto mipmap = find_mipmap(handle);
    if (mipmap == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    mipmap->context->synchronize_exclusively();
    if (mipmaps().remove(handle) == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    for (const auto& level : mipmap->levels) {
        discard(*level);
    }
    return CUDA_SUCCESS;
}

}  // extern "C"
