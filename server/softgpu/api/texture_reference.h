// Texture and surface references: variables of a module, or a program's own, which the program binds to arrays and
// memory. A launch uses them as they are when it is made.
//
// Ownership: a module owns its references, the registry those of the program (cuTexRefCreate). The texture table has an
//   object for each reference that a launch has used since it was last changed.
// Threads: any. Errors: CUresult.
#pragma once

#include "server/softgpu/api/objects.h"

namespace gpupool::softgpu {

struct TextureReference {
    explicit TextureReference(bool of_surface);
    ~TextureReference();
    TextureReference(const TextureReference&) = delete;
    TextureReference& operator=(const TextureReference&) = delete;

    const bool surface;
    Mutex mutex;
    bool bound GP_GUARDED_BY(mutex) = false;
    CUDA_RESOURCE_DESC resource GP_GUARDED_BY(mutex){};  // if `bound`
    CUDA_TEXTURE_DESC description GP_GUARDED_BY(mutex){};
    CUarray_format format GP_GUARDED_BY(mutex) = CU_AD_FORMAT_FLOAT;
    int channels GP_GUARDED_BY(mutex) = 1;

    // The object in the texture table that a launch uses now.
    std::uint64_t object();
    // The next launch needs another object.
    void changed() GP_REQUIRES(mutex);

  private:
    std::uint64_t object_ GP_GUARDED_BY(mutex) = 0;  // 0: none
};

// Makes the references of a module's code. Their handles end with forget_references().
std::vector<std::shared_ptr<TextureReference>> make_references(const CompiledModule& code);
void forget_references(const std::vector<std::shared_ptr<TextureReference>>& references);

}  // namespace gpupool::softgpu
