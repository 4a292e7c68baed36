// Texture and surface objects: checks descriptions as the driver does, and converts them for the interpreter.
#include "server/softgpu/exec/texture.h"

#include <algorithm>
#include <cstring>

#include "common/mutex.h"
#include "server/softgpu/api/array.h"
#include "server/softgpu/exec/address_space.h"
#include "server/softgpu/graph/capture.h"

namespace gpupool::softgpu {
namespace {

constexpr std::uint64_t kTextureAlignmentBytes = 512;
constexpr std::size_t kPitchAlignmentBytes = 32;
constexpr std::size_t kMaxLinearWidth = std::size_t{1} << 28;
constexpr std::size_t kMaxPitchedWidth = 131072, kMaxPitchedHeight = 65000, kMaxPitchedPitchBytes = 2097120;
constexpr std::size_t kMaxObjects = std::size_t{1} << 20;

// An object and the descriptions that it was made from, for queries.
struct ObjectRecord {
    CUDA_RESOURCE_DESC resource{};
    CUDA_TEXTURE_DESC texture{};
    CUDA_RESOURCE_VIEW_DESC view{};
    bool has_view = false;
    bool surface = false;
    Context* context = nullptr;
};

class ObjectRecords {
  public:
    bool add(std::uint64_t handle, const ObjectRecord& record) {
        const Lock lock(mutex_);
        if (records_.size() >= kMaxObjects) {
            return false;
        }
        records_[handle] = record;
        return true;
    }
    bool find(std::uint64_t handle, bool surface, ObjectRecord& record) const {
        const Lock lock(mutex_);
        const auto found = records_.find(handle);
        if (found == records_.end() || found->second.surface != surface) {
            return false;
        }
        record = found->second;
        return true;
    }
    void remove(std::uint64_t handle) {
        const Lock lock(mutex_);
        records_.erase(handle);
    }
    std::vector<std::uint64_t> remove_of(const Context& context) {
        const Lock lock(mutex_);
        std::vector<std::uint64_t> removed;
        for (auto at = records_.begin(); at != records_.end();) {
            if (at->second.context != &context) {
                ++at;
                continue;
            }
            removed.push_back(at->first);
            at = records_.erase(at);
        }
        return removed;
    }

  private:
    mutable Mutex mutex_;
    std::unordered_map<std::uint64_t, ObjectRecord> records_ GP_GUARDED_BY(mutex_);
};

ObjectRecords& records() {
    static ObjectRecords& instance = *new ObjectRecords;
    return instance;
}

bool texel_format(CUarray_format format, TexelFormat& texel) {
    switch (format) {
        case CU_AD_FORMAT_UNSIGNED_INT8: texel = TexelFormat::u8; return true;
        case CU_AD_FORMAT_UNSIGNED_INT16: texel = TexelFormat::u16; return true;
        case CU_AD_FORMAT_UNSIGNED_INT32: texel = TexelFormat::u32; return true;
        case CU_AD_FORMAT_SIGNED_INT8: texel = TexelFormat::s8; return true;
        case CU_AD_FORMAT_SIGNED_INT16: texel = TexelFormat::s16; return true;
        case CU_AD_FORMAT_SIGNED_INT32: texel = TexelFormat::s32; return true;
        case CU_AD_FORMAT_HALF: texel = TexelFormat::f16; return true;
        case CU_AD_FORMAT_FLOAT: texel = TexelFormat::f32; return true;
        default: return false;
    }
}

bool set_format(Texture& texture, CUarray_format format, unsigned channels) {
    static constexpr std::uint32_t kBytes[] = {1, 2, 4, 1, 2, 4, 2, 4};
    if (!texel_format(format, texture.format) || (channels != 1 && channels != 2 && channels != 4)) {
        return false;
    }
    texture.channels = static_cast<std::uint8_t>(channels);
    texture.texel_bytes = kBytes[static_cast<int>(texture.format)] * channels;
    return true;
}

TexelGrid grid_of(const Array& array) {
    TexelGrid grid;
    grid.address = array.address;
    grid.width = static_cast<std::uint32_t>(array.descriptor.Width);
    grid.height = static_cast<std::uint32_t>(array.height);
    grid.depth = static_cast<std::uint32_t>(array.depth);
    grid.row_bytes = array.row_bytes;
    grid.slice_bytes = array.row_bytes * array.height;
    grid.size_bytes = grid.slice_bytes * array.depth;
    return grid;
}

void set_layers(Texture& texture, const CUDA_ARRAY3D_DESCRIPTOR& descriptor) {
    if ((descriptor.Flags & CUDA_ARRAY3D_LAYERED) == 0) {
        return;
    }
    const bool cube = (descriptor.Flags & CUDA_ARRAY3D_CUBEMAP) != 0;
    texture.layers = static_cast<std::uint32_t>(descriptor.Depth / (cube ? 6 : 1));
}

CUresult from_array(const Array& array, Texture& texture) {
    if (!set_format(texture, array.descriptor.Format, array.descriptor.NumChannels)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    set_layers(texture, array.descriptor);
    texture.levels.push_back(grid_of(array));
    return CUDA_SUCCESS;
}

// The driver does not check the memory; a kernel that reads beyond it fails.
CUresult from_memory(const TexelGrid& grid, Texture& texture) {
    if (grid.address == 0 || grid.address % kTextureAlignmentBytes != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    texture.levels.push_back(grid);
    return CUDA_SUCCESS;
}

CUresult from_resource(const CUDA_RESOURCE_DESC& resource, Texture& texture) {
    if (resource.flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    switch (resource.resType) {
        case CU_RESOURCE_TYPE_ARRAY: {
            const auto array = state().arrays.find(resource.res.array.hArray);
            if (array == nullptr) {
                return CUDA_ERROR_INVALID_HANDLE;
            }
            return from_array(*array, texture);
        }
        case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY: {
            const auto mipmap = find_mipmap(resource.res.mipmap.hMipmappedArray);
            if (mipmap == nullptr) {
                return CUDA_ERROR_INVALID_HANDLE;
            }
            for (const auto& level : mipmap->levels) {
                if (texture.levels.empty()) {
                    if (const CUresult error = from_array(*level, texture); error != CUDA_SUCCESS) {
                        return error;
                    }
                } else {
                    texture.levels.push_back(grid_of(*level));
                }
            }
            return CUDA_SUCCESS;
        }
        case CU_RESOURCE_TYPE_LINEAR: {
            const auto& linear = resource.res.linear;
            if (!set_format(texture, linear.format, linear.numChannels)) {
                return CUDA_ERROR_INVALID_VALUE;
            }
            const std::size_t width = linear.sizeInBytes / texture.texel_bytes;
            if (width > kMaxLinearWidth) {
                return CUDA_ERROR_INVALID_VALUE;
            }
            texture.buffer = true;
            const std::uint64_t bytes = width * texture.texel_bytes;
            return from_memory({linear.devPtr, static_cast<std::uint32_t>(width), 1, 1, bytes, bytes, bytes}, texture);
        }
        case CU_RESOURCE_TYPE_PITCH2D: {
            const auto& pitched = resource.res.pitch2D;
            if (!set_format(texture, pitched.format, pitched.numChannels)) {
                return CUDA_ERROR_INVALID_VALUE;
            }
            const bool fits = pitched.width != 0 && pitched.height != 0 && pitched.width <= kMaxPitchedWidth &&
                              pitched.height <= kMaxPitchedHeight && pitched.pitchInBytes <= kMaxPitchedPitchBytes;
            if (!fits || pitched.pitchInBytes % kPitchAlignmentBytes != 0 ||
                pitched.pitchInBytes < pitched.width * texture.texel_bytes) {
                return CUDA_ERROR_INVALID_VALUE;
            }
            const std::uint64_t bytes =
                pitched.pitchInBytes * (pitched.height - 1) + pitched.width * texture.texel_bytes;
            return from_memory(
                {pitched.devPtr, static_cast<std::uint32_t>(pitched.width), static_cast<std::uint32_t>(pitched.height),
                 1, pitched.pitchInBytes, pitched.pitchInBytes * pitched.height, bytes},
                texture);
        }
        default: return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult apply(const CUDA_TEXTURE_DESC& description, Texture& texture) {
    constexpr unsigned kKnown = CU_TRSF_READ_AS_INTEGER | CU_TRSF_NORMALIZED_COORDINATES | CU_TRSF_SRGB |
                                CU_TRSF_DISABLE_TRILINEAR_OPTIMIZATION | CU_TRSF_SEAMLESS_CUBEMAP;
    if ((description.flags & ~kKnown) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const auto filter_known = [](CUfilter_mode mode) {
        return mode == CU_TR_FILTER_MODE_POINT || mode == CU_TR_FILTER_MODE_LINEAR;
    };
    if (!filter_known(description.filterMode) || !filter_known(description.mipmapFilterMode)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const bool real = texture.format == TexelFormat::f16 || texture.format == TexelFormat::f32;
    const bool wide = texture.format == TexelFormat::u32 || texture.format == TexelFormat::s32;
    texture.normalized_coordinates = (description.flags & CU_TRSF_NORMALIZED_COORDINATES) != 0;
    // 32-bit integers cannot be read as normalized floats.
    texture.unit_range = !real && !wide && (description.flags & CU_TRSF_READ_AS_INTEGER) == 0;
    texture.srgb = (description.flags & CU_TRSF_SRGB) != 0 && texture.format == TexelFormat::u8;
    texture.linear = description.filterMode == CU_TR_FILTER_MODE_LINEAR;
    if (texture.linear && !real && !texture.unit_range) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    texture.linear_levels = description.mipmapFilterMode == CU_TR_FILTER_MODE_LINEAR;
    for (int k = 0; k < 3; ++k) {
        switch (description.addressMode[k]) {
            case CU_TR_ADDRESS_MODE_WRAP: texture.modes[k] = AddressMode::wrap; break;
            case CU_TR_ADDRESS_MODE_CLAMP: texture.modes[k] = AddressMode::clamp; break;
            case CU_TR_ADDRESS_MODE_MIRROR: texture.modes[k] = AddressMode::mirror; break;
            case CU_TR_ADDRESS_MODE_BORDER: texture.modes[k] = AddressMode::border; break;
            default: return CUDA_ERROR_INVALID_VALUE;
        }
        // Wrap and mirror modes are only defined for normalized coordinates.
        const bool repeats = texture.modes[k] == AddressMode::wrap || texture.modes[k] == AddressMode::mirror;
        if (repeats && !texture.normalized_coordinates) {
            texture.modes[k] = AddressMode::clamp;
        }
    }
    std::copy(description.borderColor, description.borderColor + 4, texture.border);
    texture.level_bias = description.mipmapLevelBias;
    texture.lowest_level = description.minMipmapLevelClamp;
    texture.highest_level = description.maxMipmapLevelClamp;
    return CUDA_SUCCESS;
}

// Applies a view of the same texels: another format of the same size, fewer levels or layers.
CUresult apply(const CUDA_RESOURCE_VIEW_DESC& view, Texture& texture) {
    static constexpr CUarray_format kFormats[] = {
        CU_AD_FORMAT_UNSIGNED_INT8,  CU_AD_FORMAT_SIGNED_INT8,  CU_AD_FORMAT_UNSIGNED_INT16, CU_AD_FORMAT_SIGNED_INT16,
        CU_AD_FORMAT_UNSIGNED_INT32, CU_AD_FORMAT_SIGNED_INT32, CU_AD_FORMAT_HALF,           CU_AD_FORMAT_FLOAT};
    if (view.format >= CU_RES_VIEW_FORMAT_UNSIGNED_BC1) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    if (view.format != CU_RES_VIEW_FORMAT_NONE) {
        const std::uint32_t bytes = texture.texel_bytes;
        const auto index = static_cast<std::size_t>(view.format) - 1;
        if (!set_format(texture, kFormats[index / 3], 1U << index % 3) || texture.texel_bytes != bytes) {
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    const TexelGrid& first = texture.levels.front();
    if (view.width != first.width || std::max<std::size_t>(1, view.height) != first.height) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (view.firstMipmapLevel > view.lastMipmapLevel || view.lastMipmapLevel >= texture.levels.size()) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    texture.levels.erase(texture.levels.begin() + view.lastMipmapLevel + 1, texture.levels.end());
    texture.levels.erase(texture.levels.begin(), texture.levels.begin() + view.firstMipmapLevel);
    if (texture.layers == 0) {
        return CUDA_SUCCESS;
    }
    if (view.firstLayer > view.lastLayer || view.lastLayer >= texture.layers) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const std::uint32_t slices = first.depth / texture.layers;
    texture.layers = view.lastLayer - view.firstLayer + 1;
    for (TexelGrid& grid : texture.levels) {
        grid.address += view.firstLayer * slices * grid.slice_bytes;
        grid.depth = texture.layers * slices;
    }
    return CUDA_SUCCESS;
}

CUresult publish(Texture texture, const ObjectRecord& record, unsigned long long& handle) {
    const std::uint64_t added = TextureTable::instance().add(std::move(texture));
    if (!records().add(added, record)) {
        TextureTable::instance().remove(added);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    handle = added;
    return CUDA_SUCCESS;
}

CUresult destroy(unsigned long long handle, bool surface) {
    SOFTGPU_CONTEXT(context);
    ObjectRecord record;
    // As the driver, for the null object and one that is destroyed already.
    if (!records().find(handle, surface, record)) {
        return CUDA_SUCCESS;
    }
    records().remove(handle);
    TextureTable::instance().remove(handle);
    return CUDA_SUCCESS;
}

CUresult describe(unsigned long long handle, bool surface, ObjectRecord& record) {
    SOFTGPU_CONTEXT(context);
    return records().find(handle, surface, record) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

CUresult make_texture(const CUDA_RESOURCE_DESC& resource, const CUDA_TEXTURE_DESC& description,
                      const CUDA_RESOURCE_VIEW_DESC* view, Texture& texture) {
    if (const CUresult error = from_resource(resource, texture); error != CUDA_SUCCESS) {
        return error;
    }
    if (view != nullptr) {
        if (const CUresult error = apply(*view, texture); error != CUDA_SUCCESS) {
            return error;
        }
    }
    return apply(description, texture);
}

CUresult make_surface(const CUDA_RESOURCE_DESC& resource, Texture& texture) {
    if (resource.resType != CU_RESOURCE_TYPE_ARRAY) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const auto array = state().arrays.find(resource.res.array.hArray);
    if (array == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if ((array->descriptor.Flags & CUDA_ARRAY3D_SURFACE_LDST) == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    texture.surface = true;
    return from_resource(resource, texture);
}

void forget_textures(const Context& context) {
    for (const auto handle : records().remove_of(context)) {
        TextureTable::instance().remove(handle);
    }
}

}  // namespace gpupool::softgpu

using namespace gpupool::softgpu;

extern "C" {

CUresult CUDAAPI cuTexObjectCreate(CUtexObject* object, const CUDA_RESOURCE_DESC* resource,
                                   const CUDA_TEXTURE_DESC* description, const CUDA_RESOURCE_VIEW_DESC* view) {
    SOFTGPU_CONTEXT(context);
    if (object == nullptr || resource == nullptr || description == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const bool of_array =
        resource->resType == CU_RESOURCE_TYPE_ARRAY || resource->resType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY;
    if (view != nullptr && !of_array) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    Texture texture;
    if (const CUresult error = make_texture(*resource, *description, view, texture); error != CUDA_SUCCESS) {
        return error;
    }
    ObjectRecord record{*resource, *description, {}, view != nullptr, false, context.get()};
    if (view != nullptr) {
        record.view = *view;
    }
    return publish(std::move(texture), record, *object);
}

CUresult CUDAAPI cuTexObjectDestroy(CUtexObject object) {
    return destroy(object, false);
}

CUresult CUDAAPI cuTexObjectGetResourceDesc(CUDA_RESOURCE_DESC* resource, CUtexObject object) {
    SOFTGPU_NOT_NULL(resource);
    ObjectRecord record;
    const CUresult error = describe(object, false, record);
    if (error == CUDA_SUCCESS) {
        *resource = record.resource;
    }
    return error;
}

CUresult CUDAAPI cuTexObjectGetTextureDesc(CUDA_TEXTURE_DESC* description, CUtexObject object) {
    SOFTGPU_NOT_NULL(description);
    ObjectRecord record;
    const CUresult error = describe(object, false, record);
    if (error == CUDA_SUCCESS) {
        *description = record.texture;
    }
    return error;
}

CUresult CUDAAPI cuTexObjectGetResourceViewDesc(CUDA_RESOURCE_VIEW_DESC* view, CUtexObject object) {
    SOFTGPU_NOT_NULL(view);
    ObjectRecord record;
    if (const CUresult error = describe(object, false, record); error != CUDA_SUCCESS) {
        return error;
    }
    if (record.has_view) {
        *view = record.view;  // otherwise the driver leaves it as it is
    }
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuSurfObjectCreate(CUsurfObject* object, const CUDA_RESOURCE_DESC* resource) {
    SOFTGPU_CONTEXT(context);
    if (object == nullptr || resource == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    Texture texture;
    if (const CUresult error = make_surface(*resource, texture); error != CUDA_SUCCESS) {
        return error;
    }
    return publish(std::move(texture), {*resource, {}, {}, false, true, context.get()}, *object);
}

CUresult CUDAAPI cuSurfObjectDestroy(CUsurfObject object) {
    return destroy(object, true);
}

CUresult CUDAAPI cuSurfObjectGetResourceDesc(CUDA_RESOURCE_DESC* resource, CUsurfObject object) {
    SOFTGPU_NOT_NULL(resource);
    ObjectRecord record;
    const CUresult error = describe(object, true, record);
    if (error == CUDA_SUCCESS) {
        *resource = record.resource;
    }
    return error;
}

}  // extern "C"
