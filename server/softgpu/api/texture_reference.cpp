#include "server/softgpu/api/texture_reference.h"

#include <algorithm>

#include "server/softgpu/api/array.h"
#include "server/softgpu/exec/texture.h"

namespace gpupool::softgpu {
namespace {

constexpr std::uint64_t kAlignmentBytes = 512;
constexpr std::size_t kPitchAlignmentBytes = 32;

Registry<TextureReference>& references() {
    static Registry<TextureReference>& instance = *new Registry<TextureReference>;
    return instance;
}

// What a launch reads through a reference that is not bound: nothing, as on a GPU.
Texture nothing(bool surface) {
    Texture texture;
    texture.surface = surface;
    texture.buffer = true;
    texture.levels.push_back({});
    texture.levels.front().width = 0;
    return texture;
}

CUresult find_reference(const void* handle, bool surface, std::shared_ptr<TextureReference>& found) {
    SOFTGPU_READY();
    found = references().find(handle);
    return found == nullptr || found->surface != surface ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}

// Changes a texture reference. clang's analysis mistakes the argument of `make` for a member of it.
template <class Change>
CUresult change(CUtexref handle, Change make) GP_NO_THREAD_SAFETY_ANALYSIS {
    std::shared_ptr<TextureReference> reference;
    if (const CUresult error = find_reference(handle, false, reference); error != CUDA_SUCCESS) {
        return error;
    }
    TextureReference& changing = *reference;
    const Lock lock(changing.mutex);
    const CUresult result = make(changing);
    if (result == CUDA_SUCCESS) {
        changing.changed();
    }
    return result;
}

// Reads a value of a texture reference, or several. For the analysis see change().
template <class Read>
CUresult ask(CUtexref handle, const void* to, Read read) GP_NO_THREAD_SAFETY_ANALYSIS {
    SOFTGPU_NOT_NULL(to);
    std::shared_ptr<TextureReference> reference;
    if (const CUresult error = find_reference(handle, false, reference); error != CUDA_SUCCESS) {
        return error;
    }
    TextureReference& asked = *reference;
    const Lock lock(asked.mutex);
    return read(asked);
}

// Reads a member of a texture reference's description.
template <class T, class Member>
CUresult get(CUtexref handle, T* to, Member CUDA_TEXTURE_DESC::*member) {
    return ask(handle, to, [&](TextureReference& reference) GP_REQUIRES(reference.mutex) {
        *to = static_cast<T>(reference.description.*member);
        return CUDA_SUCCESS;
    });
}

CUresult name_reference(CUmodule handle, const char* name, bool surface, void** reference) {
    SOFTGPU_READY();
    const auto module = state().modules.find(handle);
    if (module == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (reference == nullptr || name == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (std::size_t i = 0; i < module->references.size(); ++i) {
        const auto& known = module->code->references[i];
        if (known.surface == surface && known.name == name) {
            *reference = module->references[i].get();
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_NOT_FOUND;
}

CUresult pitched(CUtexref handle, const CUDA_ARRAY_DESCRIPTOR* shape, CUdeviceptr address, std::size_t pitch) {
    SOFTGPU_NOT_NULL(shape);
    return change(handle, [&](TextureReference& reference) GP_REQUIRES(reference.mutex) {
        if (address % kAlignmentBytes != 0 || pitch % kPitchAlignmentBytes != 0) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        reference.format = shape->Format;
        reference.channels = static_cast<int>(shape->NumChannels);
        reference.resource = {};
        reference.resource.resType = CU_RESOURCE_TYPE_PITCH2D;
        reference.resource.res.pitch2D = {address,      shape->Format, shape->NumChannels,
                                          shape->Width, shape->Height, pitch};
        reference.bound = true;
        return CUDA_SUCCESS;
    });
}

}  // namespace

TextureReference::TextureReference(bool of_surface) : surface(of_surface) {
    std::fill_n(description.addressMode, 3, CU_TR_ADDRESS_MODE_CLAMP);
}

TextureReference::~TextureReference() {
    const Lock lock(mutex);
    changed();
}

void TextureReference::changed() {
    if (object_ != 0) {
        TextureTable::instance().remove(object_);
        object_ = 0;
    }
}

std::uint64_t TextureReference::object() {
    const Lock lock(mutex);
    if (object_ != 0) {
        return object_;
    }
    Texture texture;
    CUDA_RESOURCE_DESC made = resource;
    if (bound && made.resType == CU_RESOURCE_TYPE_LINEAR) {
        made.res.linear.format = format;  // it may be set after the address
        made.res.linear.numChannels = static_cast<unsigned>(channels);
    }
    const CUresult error = !bound    ? CUDA_ERROR_INVALID_VALUE
                           : surface ? make_surface(made, texture)
                                     : make_texture(made, description, nullptr, texture);
    if (error != CUDA_SUCCESS) {
        texture = nothing(surface);
    }
    object_ = TextureTable::instance().add(std::move(texture));
    return object_;
}

std::vector<std::shared_ptr<TextureReference>> make_references(const CompiledModule& code) {
    std::vector<std::shared_ptr<TextureReference>> made;
    for (const ModuleReference& reference : code.references) {
        made.push_back(std::make_shared<TextureReference>(reference.surface));
        references().add(made.back());
    }
    return made;
}

void forget_references(const std::vector<std::shared_ptr<TextureReference>>& ended) {
    for (const auto& reference : ended) {
        references().remove(reference.get());
    }
}

}  // namespace gpupool::softgpu

using namespace gpupool::softgpu;

extern "C" {

CUresult CUDAAPI cuModuleGetTexRef(CUtexref* reference, CUmodule module, const char* name) {
    return name_reference(module, name, false, reinterpret_cast<void**>(reference));
}

CUresult CUDAAPI cuModuleGetSurfRef(CUsurfref* reference, CUmodule module, const char* name) {
    return name_reference(module, name, true, reinterpret_cast<void**>(reference));
}

CUresult CUDAAPI cuTexRefCreate(CUtexref* result) {
    SOFTGPU_CONTEXT(context);
    SOFTGPU_NOT_NULL(result);
    auto reference = std::make_shared<TextureReference>(false);
    references().add(reference);
    *result = reinterpret_cast<CUtexref>(reference.get());
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuTexRefDestroy(CUtexref handle) {
    SOFTGPU_READY();
    return references().remove(handle) == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}

// Kernels always use their module's references.
CUresult CUDAAPI cuParamSetTexRef(CUfunction function, int, CUtexref handle) {
    std::shared_ptr<TextureReference> reference;
    if (const CUresult error = find_reference(handle, false, reference); error != CUDA_SUCCESS) {
        return error;
    }
    return state().functions.find(function) == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}

CUresult CUDAAPI cuTexRefSetArray(CUtexref handle, CUarray array, unsigned) {
    return change(handle, [&](TextureReference& reference) GP_REQUIRES(reference.mutex) {
        const auto known = state().arrays.find(array);
        if (known == nullptr) {
            return CUDA_ERROR_INVALID_HANDLE;
        }
        reference.format = known->descriptor.Format;
        reference.channels = static_cast<int>(known->descriptor.NumChannels);
        reference.resource = {};
        reference.resource.resType = CU_RESOURCE_TYPE_ARRAY;
        reference.resource.res.array.hArray = array;
        reference.bound = true;
        return CUDA_SUCCESS;
    });
}

CUresult CUDAAPI cuTexRefSetMipmappedArray(CUtexref handle, CUmipmappedArray array, unsigned) {
    return change(handle, [&](TextureReference& reference) GP_REQUIRES(reference.mutex) {
        const auto known = find_mipmap(array);
        if (known == nullptr) {
            return CUDA_ERROR_INVALID_HANDLE;
        }
        reference.format = known->descriptor.Format;
        reference.channels = static_cast<int>(known->descriptor.NumChannels);
        reference.resource = {};
        reference.resource.resType = CU_RESOURCE_TYPE_MIPMAPPED_ARRAY;
        reference.resource.res.mipmap.hMipmappedArray = array;
        reference.bound = true;
        return CUDA_SUCCESS;
    });
}

CUresult CUDAAPI cuTexRefSetAddress_v2(size_t* offset, CUtexref handle, CUdeviceptr address, size_t bytes) {
    return change(handle, [&](TextureReference& reference) GP_REQUIRES(reference.mutex) {
        const std::uint64_t beside = address % kAlignmentBytes;
        if (offset == nullptr && beside != 0) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        if (offset != nullptr) {
            *offset = beside;
        }
        reference.resource = {};
        reference.resource.resType = CU_RESOURCE_TYPE_LINEAR;
        reference.resource.res.linear.devPtr = address - beside;
        reference.resource.res.linear.sizeInBytes = bytes + beside;
        reference.bound = address != 0;
        return CUDA_SUCCESS;
    });
}

CUresult CUDAAPI cuTexRefSetAddress2D_v2(CUtexref handle, const CUDA_ARRAY_DESCRIPTOR* shape, CUdeviceptr address,
                                         size_t pitch) {
    return pitched(handle, shape, address, pitch);
}

CUresult CUDAAPI cuTexRefSetAddress2D_v3(CUtexref handle, const CUDA_ARRAY_DESCRIPTOR* shape, CUdeviceptr address,
                                         size_t pitch) {
    return pitched(handle, shape, address, pitch);
}

CUresult CUDAAPI cuTexRefSetFormat(CUtexref handle, CUarray_format format, int channels) {
    return change(handle, [&](TextureReference& reference) GP_REQUIRES(reference.mutex) {
        if (channels != 1 && channels != 2 && channels != 4) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        reference.format = format;
        reference.channels = channels;
        return CUDA_SUCCESS;
    });
}

CUresult CUDAAPI cuTexRefSetAddressMode(CUtexref handle, int dimension, CUaddress_mode mode) {
    return change(handle, [&](TextureReference& reference) GP_REQUIRES(reference.mutex) {
        if (dimension < 0 || dimension > 2) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        reference.description.addressMode[dimension] = mode;
        return CUDA_SUCCESS;
    });
}

CUresult CUDAAPI cuTexRefSetFilterMode(CUtexref handle, CUfilter_mode mode) {
    return change(handle, [&](TextureReference& reference) GP_REQUIRES(reference.mutex) {
        reference.description.filterMode = mode;
        return CUDA_SUCCESS;
    });
}

CUresult CUDAAPI cuTexRefSetMipmapFilterMode(CUtexref handle, CUfilter_mode mode) {
    return change(handle, [&](TextureReference& reference) GP_REQUIRES(reference.mutex) {
        reference.description.mipmapFilterMode = mode;
        return CUDA_SUCCESS;
    });
}

CUresult CUDAAPI cuTexRefSetMipmapLevelBias(CUtexref handle, float bias) {
    return change(handle, [&](TextureReference& reference) GP_REQUIRES(reference.mutex) {
        reference.description.mipmapLevelBias = bias;
        return CUDA_SUCCESS;
    });
}

CUresult CUDAAPI cuTexRefSetMipmapLevelClamp(CUtexref handle, float least, float most) {
    return change(handle, [&](TextureReference& reference) GP_REQUIRES(reference.mutex) {
        reference.description.minMipmapLevelClamp = least;
        reference.description.maxMipmapLevelClamp = most;
        return CUDA_SUCCESS;
    });
}

CUresult CUDAAPI cuTexRefSetMaxAnisotropy(CUtexref handle, unsigned most) {
    return change(handle, [&](TextureReference& reference) GP_REQUIRES(reference.mutex) {
        reference.description.maxAnisotropy = most;
        return CUDA_SUCCESS;
    });
}

CUresult CUDAAPI cuTexRefSetBorderColor(CUtexref handle, float* color) {
    SOFTGPU_NOT_NULL(color);
    return change(handle, [&](TextureReference& reference) GP_REQUIRES(reference.mutex) {
        std::copy(color, color + 4, reference.description.borderColor);
        return CUDA_SUCCESS;
    });
}

CUresult CUDAAPI cuTexRefSetFlags(CUtexref handle, unsigned flags) {
    constexpr unsigned kKnown = CU_TRSF_READ_AS_INTEGER | CU_TRSF_NORMALIZED_COORDINATES | CU_TRSF_SRGB |
                                CU_TRSF_DISABLE_TRILINEAR_OPTIMIZATION | CU_TRSF_SEAMLESS_CUBEMAP;
    return change(handle, [&](TextureReference& reference) GP_REQUIRES(reference.mutex) {
        if ((flags & ~kKnown) != 0) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        reference.description.flags = flags;
        return CUDA_SUCCESS;
    });
}

CUresult CUDAAPI cuTexRefGetAddress_v2(CUdeviceptr* address, CUtexref handle) {
    return ask(handle, address, [&](TextureReference& reference) GP_REQUIRES(reference.mutex) {
        const bool linear = reference.bound && reference.resource.resType == CU_RESOURCE_TYPE_LINEAR;
        if (!linear && !(reference.bound && reference.resource.resType == CU_RESOURCE_TYPE_PITCH2D)) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        *address = linear ? reference.resource.res.linear.devPtr : reference.resource.res.pitch2D.devPtr;
        return CUDA_SUCCESS;
    });
}

CUresult CUDAAPI cuTexRefGetArray(CUarray* array, CUtexref handle) {
    return ask(handle, array, [&](TextureReference& reference) GP_REQUIRES(reference.mutex) {
        if (!reference.bound || reference.resource.resType != CU_RESOURCE_TYPE_ARRAY) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        *array = reference.resource.res.array.hArray;
        return CUDA_SUCCESS;
    });
}

CUresult CUDAAPI cuTexRefGetMipmappedArray(CUmipmappedArray* array, CUtexref handle) {
    return ask(handle, array, [&](TextureReference& reference) GP_REQUIRES(reference.mutex) {
        if (!reference.bound || reference.resource.resType != CU_RESOURCE_TYPE_MIPMAPPED_ARRAY) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        *array = reference.resource.res.mipmap.hMipmappedArray;
        return CUDA_SUCCESS;
    });
}

CUresult CUDAAPI cuTexRefGetAddressMode(CUaddress_mode* mode, CUtexref handle, int dimension) {
    return ask(handle, mode, [&](TextureReference& reference) GP_REQUIRES(reference.mutex) {
        if (dimension < 0 || dimension > 2) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        *mode = reference.description.addressMode[dimension];
        return CUDA_SUCCESS;
    });
}

CUresult CUDAAPI cuTexRefGetFilterMode(CUfilter_mode* mode, CUtexref handle) {
    return get(handle, mode, &CUDA_TEXTURE_DESC::filterMode);
}

CUresult CUDAAPI cuTexRefGetFormat(CUarray_format* format, int* channels, CUtexref handle) {
    SOFTGPU_NOT_NULL(channels);
    return ask(handle, format, [&](TextureReference& reference) GP_REQUIRES(reference.mutex) {
        *format = reference.format;
        *channels = reference.channels;
        return CUDA_SUCCESS;
    });
}

CUresult CUDAAPI cuTexRefGetMipmapFilterMode(CUfilter_mode* mode, CUtexref handle) {
    return get(handle, mode, &CUDA_TEXTURE_DESC::mipmapFilterMode);
}

CUresult CUDAAPI cuTexRefGetMipmapLevelBias(float* bias, CUtexref handle) {
    return get(handle, bias, &CUDA_TEXTURE_DESC::mipmapLevelBias);
}

CUresult CUDAAPI cuTexRefGetMipmapLevelClamp(float* least, float* most, CUtexref handle) {
    SOFTGPU_NOT_NULL(most);
    return ask(handle, least, [&](TextureReference& reference) GP_REQUIRES(reference.mutex) {
        *least = reference.description.minMipmapLevelClamp;
        *most = reference.description.maxMipmapLevelClamp;
        return CUDA_SUCCESS;
    });
}

CUresult CUDAAPI cuTexRefGetMaxAnisotropy(int* most, CUtexref handle) {
    return get(handle, most, &CUDA_TEXTURE_DESC::maxAnisotropy);
}

CUresult CUDAAPI cuTexRefGetBorderColor(float* color, CUtexref handle) {
    return ask(handle, color, [&](TextureReference& reference) GP_REQUIRES(reference.mutex) {
        std::copy(reference.description.borderColor, reference.description.borderColor + 4, color);
        return CUDA_SUCCESS;
    });
}

CUresult CUDAAPI cuTexRefGetFlags(unsigned* flags, CUtexref handle) {
    return get(handle, flags, &CUDA_TEXTURE_DESC::flags);
}

CUresult CUDAAPI cuSurfRefSetArray(CUsurfref handle, CUarray array, unsigned flags) {
    std::shared_ptr<TextureReference> reference;
    if (const CUresult error = find_reference(handle, true, reference); error != CUDA_SUCCESS) {
        return error;
    }
    const auto known = state().arrays.find(array);
    if (known == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (flags != 0 || (known->descriptor.Flags & CUDA_ARRAY3D_SURFACE_LDST) == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const Lock lock(reference->mutex);
    reference->resource = {};
    reference->resource.resType = CU_RESOURCE_TYPE_ARRAY;
    reference->resource.res.array.hArray = array;
    reference->bound = true;
    reference->changed();
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuSurfRefGetArray(CUarray* array, CUsurfref handle) {
    std::shared_ptr<TextureReference> reference;
    if (const CUresult error = find_reference(handle, true, reference); error != CUDA_SUCCESS) {
        return error;
    }
    const Lock lock(reference->mutex);
    if (array == nullptr || !reference->bound) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *array = reference->resource.res.array.hArray;
    return CUDA_SUCCESS;
}

}  // extern "C"
