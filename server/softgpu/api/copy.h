// One copy or fill, whatever form it was asked for in: rows of bytes between two places. The entry points submit it to
// a stream; a graph's node holds its description and runs it by itself.
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

struct Copy {
    Rows rows;
    Side from = Side::host, to = Side::host;
};

// From and to the form that the driver API describes any copy in.
CUresult place_copy(const CUDA_MEMCPY3D& description, Copy& copy);
CUDA_MEMCPY3D describe_copy(const Copy& copy);
// What can be known before the copy runs; sets the kind of unified sides.
CUresult check_copy(Copy& copy);
CUresult run_copy(const Copy& copy, const Context& context);
CUresult submit_copy(CUstream stream, const CUDA_MEMCPY3D& description, bool wait);
CUresult submit_rows(CUstream stream, const Rows& rows, Side from, Side to, bool wait);

CUresult check_fill(const CUDA_MEMSET_NODE_PARAMS& fill);
CUresult run_fill(const CUDA_MEMSET_NODE_PARAMS& fill);
CUresult submit_fill(CUstream stream, const CUDA_MEMSET_NODE_PARAMS& fill);

}  // namespace gpupool::softgpu
