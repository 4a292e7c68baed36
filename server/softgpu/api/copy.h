// One copy or fill in a common form, whichever call requested it: rows of bytes between two places. Entry points submit
// it to a stream; a graph node stores its description and runs it.
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

// Kind of a side. `unified`: determined from the address.
enum class Side : std::uint8_t { host, device, unified };

struct Copy {
    Rows rows;
    Side from = Side::host, to = Side::host;
};

// Convert from and to CUDA_MEMCPY3D, which can describe every copy.
CUresult place_copy(const CUDA_MEMCPY3D& description, Copy& copy);
CUDA_MEMCPY3D describe_copy(const Copy& copy);
// Makes the checks that are possible before the copy runs, and resolves unified sides.
CUresult check_copy(Copy& copy);
CUresult run_copy(const Copy& copy, const Context& context);
CUresult submit_copy(CUstream stream, const CUDA_MEMCPY3D& description, bool wait);
CUresult submit_rows(CUstream stream, const Rows& rows, Side from, Side to, bool wait);
// A checked copy of a batch. As in the driver, it waits for the stream to read pageable memory in stream order, or any
// other memory during the call. It does not wait for its destination.
CUresult submit_batched(const StreamPtr& stream, const Copy& copy, CUmemcpySrcAccessOrder order);
// Must a synchronous call that uses this address wait for its stream? Yes for host and managed memory, and with
// SYNC_MEMOPS.
bool is_seen_at_once(std::uint64_t address);

CUresult check_fill(const CUDA_MEMSET_NODE_PARAMS& fill);
CUresult run_fill(const CUDA_MEMSET_NODE_PARAMS& fill);
CUresult submit_fill(CUstream stream, const CUDA_MEMSET_NODE_PARAMS& fill, bool wait);

}  // namespace gpupool::softgpu
