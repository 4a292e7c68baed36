// The memcpy and memset entry points.
#include <cstring>

#include "server/softgpu/api/array.h"
#include "server/softgpu/api/copy.h"
#include "server/softgpu/graph/capture.h"

using namespace gpupool::softgpu;

namespace {

Rows flat(std::uint64_t to, std::uint64_t from, std::size_t bytes) {
    Rows rows;
    rows.to = to, rows.from = from, rows.width_bytes = bytes;
    return rows;
}

std::uint64_t address(const void* pointer) {
    return reinterpret_cast<std::uint64_t>(pointer);
}

CUresult copy_2d(const CUDA_MEMCPY2D* copy, CUstream stream, bool wait) {
    SOFTGPU_NOT_NULL(copy);
    CUDA_MEMCPY3D d{};
    d.srcXInBytes = copy->srcXInBytes, d.srcY = copy->srcY;
    d.srcMemoryType = copy->srcMemoryType, d.srcHost = copy->srcHost;
    d.srcDevice = copy->srcDevice, d.srcArray = copy->srcArray, d.srcPitch = copy->srcPitch;
    d.dstXInBytes = copy->dstXInBytes, d.dstY = copy->dstY;
    d.dstMemoryType = copy->dstMemoryType, d.dstHost = copy->dstHost;
    d.dstDevice = copy->dstDevice, d.dstArray = copy->dstArray, d.dstPitch = copy->dstPitch;
    d.WidthInBytes = copy->WidthInBytes, d.Height = copy->Height, d.Depth = 1;
    return submit_copy(stream, d, wait);
}

CUresult copy_3d(const CUDA_MEMCPY3D* copy, CUstream stream, bool wait) {
    SOFTGPU_NOT_NULL(copy);
    return submit_copy(stream, *copy, wait);
}

CUresult copy_3d_peer(const CUDA_MEMCPY3D_PEER* copy, CUstream stream, bool wait) {
    SOFTGPU_NOT_NULL(copy);
    // Both structures have the same layout; where this one names contexts, the other has reserved pointers.
    CUDA_MEMCPY3D d{};
    static_assert(sizeof d == sizeof *copy);
    std::memcpy(&d, copy, sizeof d);
    d.reserved0 = d.reserved1 = nullptr;
    return submit_copy(stream, d, wait);
}

CUresult fill(CUstream stream, CUdeviceptr to, std::size_t pitch, unsigned value, unsigned element, std::size_t width,
              std::size_t height) {
    return submit_fill(stream, {to, pitch, value, element, width, height}, false);
}

// Calls without a stream work on the legacy stream, so they violate captures of blocking streams only.
CUresult fill_now(CUdeviceptr to, std::size_t pitch, unsigned value, unsigned element, std::size_t width,
                  std::size_t height) {
    SOFTGPU_READY();
    return submit_fill(nullptr, {to, pitch, value, element, width, height}, is_seen_at_once(to));
}

CUresult copy_now(const Rows& rows, Side from, Side to, bool wait) {
    SOFTGPU_READY();
    return submit_rows(nullptr, rows, from, to, wait || is_seen_at_once(rows.from) || is_seen_at_once(rows.to));
}

// A copy between part of a one-dimensional array and another place.
CUresult with_array(CUarray array, std::size_t offset, std::size_t bytes, std::uint64_t other, Side other_side,
                    bool to_array, CUstream stream, bool wait) {
    SOFTGPU_READY();
    std::uint64_t line = 0;
    if (const CUresult error = place_in_line(array, offset, bytes, line); error != CUDA_SUCCESS) {
        return error;
    }
    return to_array ? submit_rows(stream, flat(line, other, bytes), other_side, Side::device, wait)
                    : submit_rows(stream, flat(other, line, bytes), Side::device, other_side, wait);
}

CUresult check_contexts(CUcontext first, CUcontext second) {
    SOFTGPU_READY();
    const bool known = state().contexts.find(first) != nullptr && state().contexts.find(second) != nullptr;
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

}  // namespace

extern "C" {

CUresult CUDAAPI cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    return copy_now(flat(to, from, bytes), Side::unified, Side::unified, true);
}
CUresult CUDAAPI cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return submit_rows(stream, flat(to, from, bytes), Side::unified, Side::unified, false);
}
CUresult CUDAAPI cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t bytes) {
    return copy_now(flat(to, address(from), bytes), Side::host, Side::device, true);
}
CUresult CUDAAPI cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
    return submit_rows(stream, flat(to, address(from), bytes), Side::host, Side::device, false);
}
CUresult CUDAAPI cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t bytes) {
    return copy_now(flat(address(to), from, bytes), Side::device, Side::host, true);
}
CUresult CUDAAPI cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return submit_rows(stream, flat(address(to), from, bytes), Side::device, Side::host, false);
}
// Device-to-device copies are asynchronous in the driver even without Async. Later work of every blocking stream
// follows them.
CUresult CUDAAPI cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    return copy_now(flat(to, from, bytes), Side::device, Side::device, false);
}
CUresult CUDAAPI cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return submit_rows(stream, flat(to, from, bytes), Side::device, Side::device, false);
}
CUresult CUDAAPI cuMemcpyPeer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
                              size_t bytes) {
    if (const CUresult error = check_contexts(to_context, from_context); error != CUDA_SUCCESS) {
        return error;
    }
    return copy_now(flat(to, from, bytes), Side::device, Side::device, false);
}
CUresult CUDAAPI cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
                                   size_t bytes, CUstream stream) {
    if (const CUresult error = check_contexts(to_context, from_context); error != CUDA_SUCCESS) {
        return error;
    }
    return submit_rows(stream, flat(to, from, bytes), Side::device, Side::device, false);
}
CUresult CUDAAPI cuMemcpy2D_v2(const CUDA_MEMCPY2D* copy) {
    SOFTGPU_READY();
    return copy_2d(copy, nullptr, true);
}
CUresult CUDAAPI cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D* copy) {
    SOFTGPU_READY();
    return copy_2d(copy, nullptr, true);
}
CUresult CUDAAPI cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D* copy, CUstream stream) {
    return copy_2d(copy, stream, false);
}
CUresult CUDAAPI cuMemcpy3D_v2(const CUDA_MEMCPY3D* copy) {
    SOFTGPU_READY();
    return copy_3d(copy, nullptr, true);
}
CUresult CUDAAPI cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D* copy, CUstream stream) {
    return copy_3d(copy, stream, false);
}
CUresult CUDAAPI cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER* copy) {
    SOFTGPU_READY();
    return copy_3d_peer(copy, nullptr, true);
}
CUresult CUDAAPI cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER* copy, CUstream handle) {
    SOFTGPU_STREAM(handle, stream);
    if (const CUresult refused = refuse_captured(stream); refused != CUDA_SUCCESS) {
        return refused;
    }
    return copy_3d_peer(copy, handle, false);
}

CUresult CUDAAPI cuMemcpyHtoA_v2(CUarray to, size_t offset, const void* from, size_t bytes) {
    return with_array(to, offset, bytes, address(from), Side::host, true, nullptr, true);
}
CUresult CUDAAPI cuMemcpyHtoAAsync_v2(CUarray to, size_t offset, const void* from, size_t bytes, CUstream stream) {
    return with_array(to, offset, bytes, address(from), Side::host, true, stream, false);
}
CUresult CUDAAPI cuMemcpyAtoH_v2(void* to, CUarray from, size_t offset, size_t bytes) {
    return with_array(from, offset, bytes, address(to), Side::host, false, nullptr, true);
}
CUresult CUDAAPI cuMemcpyAtoHAsync_v2(void* to, CUarray from, size_t offset, size_t bytes, CUstream stream) {
    return with_array(from, offset, bytes, address(to), Side::host, false, stream, false);
}
CUresult CUDAAPI cuMemcpyDtoA_v2(CUarray to, size_t offset, CUdeviceptr from, size_t bytes) {
    return with_array(to, offset, bytes, from, Side::device, true, nullptr, true);
}
CUresult CUDAAPI cuMemcpyAtoD_v2(CUdeviceptr to, CUarray from, size_t offset, size_t bytes) {
    return with_array(from, offset, bytes, to, Side::device, false, nullptr, true);
}
CUresult CUDAAPI cuMemcpyAtoA_v2(CUarray to, size_t to_offset, CUarray from, size_t from_offset, size_t bytes) {
    SOFTGPU_READY();
    std::uint64_t line = 0;
    if (const CUresult error = place_in_line(from, from_offset, bytes, line); error != CUDA_SUCCESS) {
        return error;
    }
    return with_array(to, to_offset, bytes, line, Side::device, true, nullptr, true);
}

CUresult CUDAAPI cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t count) {
    return fill_now(to, 0, value, 1, count, 1);
}
CUresult CUDAAPI cuMemsetD16_v2(CUdeviceptr to, unsigned short value, size_t count) {
    return fill_now(to, 0, value, 2, count, 1);
}
CUresult CUDAAPI cuMemsetD32_v2(CUdeviceptr to, unsigned value, size_t count) {
    return fill_now(to, 0, value, 4, count, 1);
}
CUresult CUDAAPI cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream) {
    return fill(stream, to, 0, value, 1, count, 1);
}
CUresult CUDAAPI cuMemsetD16Async(CUdeviceptr to, unsigned short value, size_t count, CUstream stream) {
    return fill(stream, to, 0, value, 2, count, 1);
}
CUresult CUDAAPI cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream stream) {
    return fill(stream, to, 0, value, 4, count, 1);
}
CUresult CUDAAPI cuMemsetD2D8_v2(CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height) {
    return fill_now(to, pitch, value, 1, width, height);
}
CUresult CUDAAPI cuMemsetD2D16_v2(CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height) {
    return fill_now(to, pitch, value, 2, width, height);
}
CUresult CUDAAPI cuMemsetD2D32_v2(CUdeviceptr to, size_t pitch, unsigned value, size_t width, size_t height) {
    return fill_now(to, pitch, value, 4, width, height);
}
CUresult CUDAAPI cuMemsetD2D8Async(CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height,
                                   CUstream stream) {
    return fill(stream, to, pitch, value, 1, width, height);
}
CUresult CUDAAPI cuMemsetD2D16Async(CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height,
                                    CUstream stream) {
    return fill(stream, to, pitch, value, 2, width, height);
}
CUresult CUDAAPI cuMemsetD2D32Async(CUdeviceptr to, size_t pitch, unsigned value, size_t width, size_t height,
                                    CUstream stream) {
    return fill(stream, to, pitch, value, 4, width, height);
}

}  // extern "C"
