// One copy or fill, whatever form it was asked for in: rows of bytes between two places.
//
// Threads: any. Errors: CUresult.
#pragma once

#include "server/softgpu/api/objects.h"

namespace gpupool::softgpu {

struct Rows {
    std::uint64_t from = 0, to = 0;
    std::size_t width_bytes = 0, height = 1, depth = 1;
    std::size_t from_pitch_bytes = 0, to_pitch_bytes = 0;
    std::size_t from_slice_bytes = 0, to_slice_bytes = 0;
};

// Kinds of the two sides; `unified` looks the address up.
enum class Side : std::uint8_t { host, device, unified };

CUresult copy_rows(CUstream stream, Rows rows, Side from, Side to, bool wait);
CUresult fill_rows(CUstream stream, std::uint64_t to, std::uint32_t value, unsigned element_bytes, std::size_t width,
                   std::size_t height, std::size_t pitch_bytes, bool wait);

}  // namespace gpupool::softgpu
