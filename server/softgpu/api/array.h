// CUDA arrays: rows of elements in memory of their own, in which they lie row by row; and mipmapped ones, whose levels
// are arrays.
//
// Ownership: the registry; a destroyed array's memory goes once the context's work is done. Threads: any. Errors:
// CUresult.
#pragma once

#include "server/softgpu/api/objects.h"

namespace gpupool::softgpu {

struct Array {
    CUDA_ARRAY3D_DESCRIPTOR descriptor{};
    Context* context = nullptr;
    std::uint64_t address = 0;
    std::size_t element_bytes = 0;
    std::size_t row_bytes = 0;
    std::size_t height = 1, depth = 1;  // as copies see them: never zero
    bool is_level = false;              // of a mipmapped array, which it goes with
};

struct Mipmap {
    CUDA_ARRAY3D_DESCRIPTOR descriptor{};
    Context* context = nullptr;
    std::vector<std::shared_ptr<Array>> levels;
};
std::shared_ptr<Mipmap> find_mipmap(CUmipmappedArray handle);
// A context ends: its mipmapped arrays and texture objects go. Its arrays are in the state's registry.
void forget_mipmaps(const Context& context);
void forget_textures(const Context& context);

// Where `bytes` bytes at an offset lie, for the copies by offset: those are for arrays of one dimension.
CUresult place_in_line(CUarray handle, std::size_t offset, std::size_t bytes, std::uint64_t& address);

}  // namespace gpupool::softgpu
