// CUDA arrays, each a row-major block of memory, and mipmapped arrays, whose levels are arrays.
//
// Ownership: the registry owns them. A destroyed array's memory is freed once the context's work is complete.
// Threads: any. Errors: CUresult.
#pragma once

#include "server/softgpu/api/objects.h"

namespace gpupool::softgpu {

struct Array {
    CUDA_ARRAY3D_DESCRIPTOR descriptor{};
    Context* context = nullptr;
    std::uint64_t address = 0;
    std::size_t element_bytes = 0;
    std::size_t row_bytes = 0;
    std::size_t height = 1, depth = 1;  // never zero, which copies rely on
    bool is_level = false;              // belongs to a mipmapped array, and is destroyed with it
};

struct Mipmap {
    CUDA_ARRAY3D_DESCRIPTOR descriptor{};
    Context* context = nullptr;
    std::vector<std::shared_ptr<Array>> levels;
};
std::shared_ptr<Mipmap> find_mipmap(CUmipmappedArray handle);
// At the end of a context: removes its mipmapped arrays and texture objects. Its arrays are in the state's registry.
void forget_mipmaps(const Context& context);
void forget_textures(const Context& context);

// Bytes per channel; 0 for formats that the software GPU does not support (planar and compressed ones).
std::size_t channel_bytes(CUarray_format format);

struct Texture;
// Converts descriptions for the interpreter, checked as the driver does. `view` may be null.
CUresult make_texture(const CUDA_RESOURCE_DESC& resource, const CUDA_TEXTURE_DESC& description,
                      const CUDA_RESOURCE_VIEW_DESC* view, Texture& texture);
CUresult make_surface(const CUDA_RESOURCE_DESC& resource, Texture& texture);

// Finds the address of `bytes` bytes at an offset, for copies by offset. Such copies need one-dimensional arrays.
CUresult place_in_line(CUarray handle, std::size_t offset, std::size_t bytes, std::uint64_t& address);

}  // namespace gpupool::softgpu
