// The memcpy and memset entry points.
#include "server/softgpu/api/copy.h"

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

// Where one side of a 2D or 3D copy lies; arrays are not there yet.
bool place(CUmemorytype type, const void* host, CUdeviceptr device, std::uint64_t& at, Side& side) {
    switch (type) {
        case CU_MEMORYTYPE_HOST: at = address(host), side = Side::host; return true;
        case CU_MEMORYTYPE_DEVICE: at = device, side = Side::device; return true;
        case CU_MEMORYTYPE_UNIFIED: at = device, side = Side::unified; return true;
        default: return false;
    }
}

CUresult copy_2d(const CUDA_MEMCPY2D* copy, CUstream stream, bool wait) {
    SOFTGPU_NOT_NULL(copy);
    if (copy->srcMemoryType == CU_MEMORYTYPE_ARRAY || copy->dstMemoryType == CU_MEMORYTYPE_ARRAY)
        return CUDA_ERROR_NOT_SUPPORTED;
    Rows rows;
    Side from, to;
    if (!place(copy->srcMemoryType, copy->srcHost, copy->srcDevice, rows.from, from) ||
        !place(copy->dstMemoryType, copy->dstHost, copy->dstDevice, rows.to, to)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    rows.width_bytes = copy->WidthInBytes, rows.height = copy->Height;
    rows.from_pitch_bytes = copy->srcPitch != 0 ? copy->srcPitch : copy->WidthInBytes;
    rows.to_pitch_bytes = copy->dstPitch != 0 ? copy->dstPitch : copy->WidthInBytes;
    if (rows.height > 1 && (rows.from_pitch_bytes < rows.width_bytes || rows.to_pitch_bytes < rows.width_bytes))
        return CUDA_ERROR_INVALID_VALUE;
    rows.from += copy->srcY * rows.from_pitch_bytes + copy->srcXInBytes;
    rows.to += copy->dstY * rows.to_pitch_bytes + copy->dstXInBytes;
    return copy_rows(stream, rows, from, to, wait);
}

template <class Copy>
CUresult copy_3d(const Copy* copy, CUstream stream, bool wait) {
    SOFTGPU_NOT_NULL(copy);
    if (copy->srcMemoryType == CU_MEMORYTYPE_ARRAY || copy->dstMemoryType == CU_MEMORYTYPE_ARRAY)
        return CUDA_ERROR_NOT_SUPPORTED;
    Rows rows;
    Side from, to;
    if (!place(copy->srcMemoryType, copy->srcHost, copy->srcDevice, rows.from, from) ||
        !place(copy->dstMemoryType, copy->dstHost, copy->dstDevice, rows.to, to)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    rows.width_bytes = copy->WidthInBytes, rows.height = copy->Height, rows.depth = copy->Depth;
    rows.from_pitch_bytes = copy->srcPitch != 0 ? copy->srcPitch : copy->WidthInBytes;
    rows.to_pitch_bytes = copy->dstPitch != 0 ? copy->dstPitch : copy->WidthInBytes;
    const std::size_t from_height = copy->srcHeight != 0 ? copy->srcHeight : copy->Height;
    const std::size_t to_height = copy->dstHeight != 0 ? copy->dstHeight : copy->Height;
    if (__builtin_mul_overflow(rows.from_pitch_bytes, from_height, &rows.from_slice_bytes) ||
        __builtin_mul_overflow(rows.to_pitch_bytes, to_height, &rows.to_slice_bytes)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const bool rows_overlap =
        rows.height > 1 && (rows.from_pitch_bytes < rows.width_bytes || rows.to_pitch_bytes < rows.width_bytes);
    const bool slices_overlap = rows.depth > 1 && (from_height < rows.height || to_height < rows.height);
    if (rows_overlap || slices_overlap) return CUDA_ERROR_INVALID_VALUE;
    rows.from += copy->srcZ * rows.from_slice_bytes + copy->srcY * rows.from_pitch_bytes + copy->srcXInBytes;
    rows.to += copy->dstZ * rows.to_slice_bytes + copy->dstY * rows.to_pitch_bytes + copy->dstXInBytes;
    return copy_rows(stream, rows, from, to, wait);
}

CUresult check_contexts(CUcontext first, CUcontext second) {
    SOFTGPU_READY();
    const bool known = state().contexts.find(first) != nullptr && state().contexts.find(second) != nullptr;
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

}  // namespace

extern "C" {

CUresult CUDAAPI cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    return copy_rows(nullptr, flat(to, from, bytes), Side::unified, Side::unified, true);
}
CUresult CUDAAPI cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return copy_rows(stream, flat(to, from, bytes), Side::unified, Side::unified, false);
}
CUresult CUDAAPI cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t bytes) {
    return copy_rows(nullptr, flat(to, address(from), bytes), Side::host, Side::device, true);
}
CUresult CUDAAPI cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
    return copy_rows(stream, flat(to, address(from), bytes), Side::host, Side::device, false);
}
CUresult CUDAAPI cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t bytes) {
    return copy_rows(nullptr, flat(address(to), from, bytes), Side::device, Side::host, true);
}
CUresult CUDAAPI cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return copy_rows(stream, flat(address(to), from, bytes), Side::device, Side::host, false);
}
// Device to device is asynchronous natively even in its plain form; what follows on any blocking stream is behind it.
CUresult CUDAAPI cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    return copy_rows(nullptr, flat(to, from, bytes), Side::device, Side::device, false);
}
CUresult CUDAAPI cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return copy_rows(stream, flat(to, from, bytes), Side::device, Side::device, false);
}
CUresult CUDAAPI cuMemcpyPeer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
                              size_t bytes) {
    if (const CUresult error = check_contexts(to_context, from_context); error != CUDA_SUCCESS) return error;
    return copy_rows(nullptr, flat(to, from, bytes), Side::device, Side::device, false);
}
CUresult CUDAAPI cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
                                   size_t bytes, CUstream stream) {
    if (const CUresult error = check_contexts(to_context, from_context); error != CUDA_SUCCESS) return error;
    return copy_rows(stream, flat(to, from, bytes), Side::device, Side::device, false);
}
CUresult CUDAAPI cuMemcpy2D_v2(const CUDA_MEMCPY2D* copy) {
    return copy_2d(copy, nullptr, true);
}
CUresult CUDAAPI cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D* copy) {
    return copy_2d(copy, nullptr, true);
}
CUresult CUDAAPI cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D* copy, CUstream stream) {
    return copy_2d(copy, stream, false);
}
CUresult CUDAAPI cuMemcpy3D_v2(const CUDA_MEMCPY3D* copy) {
    return copy_3d(copy, nullptr, true);
}
CUresult CUDAAPI cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D* copy, CUstream stream) {
    return copy_3d(copy, stream, false);
}
CUresult CUDAAPI cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER* copy) {
    return copy_3d(copy, nullptr, true);
}
CUresult CUDAAPI cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER* copy, CUstream stream) {
    return copy_3d(copy, stream, false);
}

CUresult CUDAAPI cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t count) {
    return fill_rows(nullptr, to, value, 1, count, 1, 0, false);
}
CUresult CUDAAPI cuMemsetD16_v2(CUdeviceptr to, unsigned short value, size_t count) {
    return fill_rows(nullptr, to, value, 2, count, 1, 0, false);
}
CUresult CUDAAPI cuMemsetD32_v2(CUdeviceptr to, unsigned value, size_t count) {
    return fill_rows(nullptr, to, value, 4, count, 1, 0, false);
}
CUresult CUDAAPI cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream) {
    return fill_rows(stream, to, value, 1, count, 1, 0, false);
}
CUresult CUDAAPI cuMemsetD16Async(CUdeviceptr to, unsigned short value, size_t count, CUstream stream) {
    return fill_rows(stream, to, value, 2, count, 1, 0, false);
}
CUresult CUDAAPI cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream stream) {
    return fill_rows(stream, to, value, 4, count, 1, 0, false);
}
CUresult CUDAAPI cuMemsetD2D8_v2(CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height) {
    return fill_rows(nullptr, to, value, 1, width, height, pitch, false);
}
CUresult CUDAAPI cuMemsetD2D16_v2(CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height) {
    return fill_rows(nullptr, to, value, 2, width, height, pitch, false);
}
CUresult CUDAAPI cuMemsetD2D32_v2(CUdeviceptr to, size_t pitch, unsigned value, size_t width, size_t height) {
    return fill_rows(nullptr, to, value, 4, width, height, pitch, false);
}
CUresult CUDAAPI cuMemsetD2D8Async(CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height,
                                   CUstream stream) {
    return fill_rows(stream, to, value, 1, width, height, pitch, false);
}
CUresult CUDAAPI cuMemsetD2D16Async(CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height,
                                    CUstream stream) {
    return fill_rows(stream, to, value, 2, width, height, pitch, false);
}
CUresult CUDAAPI cuMemsetD2D32Async(CUdeviceptr to, size_t pitch, unsigned value, size_t width, size_t height,
                                    CUstream stream) {
    return fill_rows(stream, to, value, 4, width, height, pitch, false);
}

}  // extern "C"
