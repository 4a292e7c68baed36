// Copies. Which end of a copy is on the device follows from what the client knows about its addresses. The client reads
// and writes the host's end itself.

#include "client/calls/copy_parts.h"
#include "client/calls/copy_shapes.h"
#include "client/calls/handlers.h"

namespace gpupool::client::entry {
namespace {

CUDA_MEMCPY3D plain_copy(CUdeviceptr dst, bool to_device, CUdeviceptr src, bool from_device, std::size_t bytes) {
    CUDA_MEMCPY3D copy{};
    copy.srcMemoryType = from_device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
    copy.srcDevice = src;
    copy.srcHost = reinterpret_cast<const void*>(src);
    copy.dstMemoryType = to_device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
    copy.dstDevice = dst;
    copy.dstHost = reinterpret_cast<void*>(dst);
    copy.WidthInBytes = bytes;
    copy.Height = copy.Depth = 1;
    return copy;
}

CUresult copy_plain(CUdeviceptr dst, Side dst_side, CUdeviceptr src, Side src_side, std::size_t bytes, CUstream stream,
                    Waiting waiting) {
    Session* s = nullptr;
    if (const CUresult result = begin_copy(s); result != CUDA_SUCCESS) {
        return result;
    }
    if (bytes == 0) {
        return CUDA_SUCCESS;
    }
    if (!may_copy(*s, dst, src, bytes)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const bool capturing = is_capturing(*s, stream);
    const Place to = place_of(*s, dst, dst_side), from = place_of(*s, src, src_side);
    if (!capturing && is_hosts(*s, to, dst) && is_hosts(*s, from, src)) {
        return copy_on_host(s->host_mirrors.program_address(dst), s->host_mirrors.program_address(src), bytes, stream);
    }
    const Route route = route_of(to, from, capturing);
    const WaitForReplies until_known(route.to_ask);
    const bool asynchronous = waiting == Waiting::as_asynchronous;
    void* const host_dst = reinterpret_cast<void*>(dst);
    const void* const host_src = reinterpret_cast<const void*>(src);
    if (route.to_device && route.from_device) {
        const CUresult sent = remote<calls::cuMemcpyDtoDAsync_v2>(dst, src, bytes, stream);
        const bool seen = !asynchronous && (is_seen_at_once(*s, dst) || is_seen_at_once(*s, src));
        return end_copy(sent, seen, stream);
    }
    if (capturing) {
        return capture_copy(plain_copy(dst, route.to_device, src, route.from_device, bytes), true, stream);
    }
    if (route.to_device) {
        Reading reading;
        CUresult sent = await_writers(*s, host_src, host_src, bytes, stream, asynchronous, reading);
        if (sent == CUDA_SUCCESS) {
            sent = to_device(*s, dst, host_src, bytes, stream, reading);
        }
        return end_copy(sent, !asynchronous && (others_see() || is_seen_at_once(*s, dst)), stream);
    }
    return from_device(*s, host_dst, src, bytes, stream, !asynchronous || !is_pinned(*s, host_dst));
}

CUDA_MEMCPY3D as_3d(const CUDA_MEMCPY2D& c) {
    CUDA_MEMCPY3D out{};
    out.srcXInBytes = c.srcXInBytes;
    out.srcY = c.srcY;
    out.srcMemoryType = c.srcMemoryType;
    out.srcHost = c.srcHost;
    out.srcDevice = c.srcDevice;
    out.srcArray = c.srcArray;
    out.srcPitch = c.srcPitch;
    out.dstXInBytes = c.dstXInBytes;
    out.dstY = c.dstY;
    out.dstMemoryType = c.dstMemoryType;
    out.dstHost = c.dstHost;
    out.dstDevice = c.dstDevice;
    out.dstArray = c.dstArray;
    out.dstPitch = c.dstPitch;
    out.WidthInBytes = c.WidthInBytes;
    out.Height = c.Height;
    out.Depth = 1;
    return out;
}

CUresult copy_2d(const CUDA_MEMCPY2D* copy, CUstream stream, Waiting waiting) {
    return copy == nullptr ? CUDA_ERROR_INVALID_VALUE : copy_shaped(as_3d(*copy), stream, waiting);
}

CUresult copy_3d(const CUDA_MEMCPY3D* copy, CUstream stream, Waiting waiting) {
    return copy == nullptr ? CUDA_ERROR_INVALID_VALUE : copy_shaped(*copy, stream, waiting);
}

CUresult to_array(CUarray array, std::size_t offset, const void* source, std::size_t bytes, CUstream stream,
                  Waiting waiting) {
    CUDA_MEMCPY3D copy{};
    copy.srcMemoryType = CU_MEMORYTYPE_HOST;
    copy.srcHost = source;
    copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
    copy.dstArray = array;
    copy.dstXInBytes = offset;
    copy.WidthInBytes = bytes;
    copy.Height = copy.Depth = 1;
    return copy_shaped(copy, stream, waiting);
}

CUresult from_array(void* destination, CUarray array, std::size_t offset, std::size_t bytes, CUstream stream,
                    Waiting waiting) {
    CUDA_MEMCPY3D copy{};
    copy.srcMemoryType = CU_MEMORYTYPE_ARRAY;
    copy.srcArray = array;
    copy.srcXInBytes = offset;
    copy.dstMemoryType = CU_MEMORYTYPE_HOST;
    copy.dstHost = destination;
    copy.WidthInBytes = bytes;
    copy.Height = copy.Depth = 1;
    return copy_shaped(copy, stream, waiting);
}

bool is_known(CUdeviceptr address, std::size_t bytes) {
    CUresult result = CUDA_SUCCESS;
    const Session* const s = session(result);
    return s != nullptr && surely_holds(*s, address, bytes);
}

}  // namespace

CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, std::size_t ByteCount) {
    return copy_plain(dst, Side::any, src, Side::any, ByteCount, nullptr, Waiting::as_synchronous);
}
CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, std::size_t ByteCount, CUstream hStream) {
    return copy_plain(dst, Side::any, src, Side::any, ByteCount, hStream, Waiting::as_asynchronous);
}
CUresult cuMemcpyHtoD_v2(CUdeviceptr dstDevice, const void* srcHost, std::size_t ByteCount) {
    return copy_plain(dstDevice, Side::device, address_of(srcHost), Side::host, ByteCount, nullptr,
                      Waiting::as_synchronous);
}
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dstDevice, const void* srcHost, std::size_t ByteCount, CUstream hStream) {
    return copy_plain(dstDevice, Side::device, address_of(srcHost), Side::host, ByteCount, hStream,
                      Waiting::as_asynchronous);
}
CUresult cuMemcpyDtoH_v2(void* dstHost, CUdeviceptr srcDevice, std::size_t ByteCount) {
    return copy_plain(address_of(dstHost), Side::host, srcDevice, Side::device, ByteCount, nullptr,
                      Waiting::as_synchronous);
}
CUresult cuMemcpyDtoHAsync_v2(void* dstHost, CUdeviceptr srcDevice, std::size_t ByteCount, CUstream hStream) {
    return copy_plain(address_of(dstHost), Side::host, srcDevice, Side::device, ByteCount, hStream,
                      Waiting::as_asynchronous);
}
CUresult cuMemcpyDtoD_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice, std::size_t ByteCount) {
    return copy_plain(dstDevice, Side::device, srcDevice, Side::device, ByteCount, nullptr, Waiting::as_synchronous);
}
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice, std::size_t ByteCount, CUstream hStream) {
    Session* s = nullptr;
    const CUresult result = begin_copy(s);
    if (result != CUDA_SUCCESS || ByteCount == 0) {
        return result;
    }
    if (!may_copy(*s, dstDevice, srcDevice, ByteCount)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (is_gpus_host_memory(*s, dstDevice) && is_gpus_host_memory(*s, srcDevice)) {
        return copy_plain(dstDevice, Side::device, srcDevice, Side::device, ByteCount, hStream,
                          Waiting::as_asynchronous);
    }
    const bool known = surely_holds(*s, dstDevice, ByteCount) && surely_holds(*s, srcDevice, ByteCount);
    return remote_or_ask<calls::cuMemcpyDtoDAsync_v2>(known, dstDevice, srcDevice, ByteCount, hStream);
}
CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D* pCopy) {
    return copy_2d(pCopy, nullptr, Waiting::as_synchronous);
}
CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D* pCopy) {
    return copy_2d(pCopy, nullptr, Waiting::as_synchronous);
}
CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D* pCopy, CUstream hStream) {
    return copy_2d(pCopy, hStream, Waiting::as_asynchronous);
}
CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D* pCopy) {
    return copy_3d(pCopy, nullptr, Waiting::as_synchronous);
}
CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D* pCopy, CUstream hStream) {
    return copy_3d(pCopy, hStream, Waiting::as_asynchronous);
}
CUresult cuMemcpyHtoA_v2(CUarray dstArray, std::size_t dstOffset, const void* srcHost, std::size_t ByteCount) {
    return to_array(dstArray, dstOffset, srcHost, ByteCount, nullptr, Waiting::as_synchronous);
}
CUresult cuMemcpyHtoAAsync_v2(CUarray dstArray, std::size_t dstOffset, const void* srcHost, std::size_t ByteCount,
                              CUstream hStream) {
    return to_array(dstArray, dstOffset, srcHost, ByteCount, hStream, Waiting::as_asynchronous);
}
CUresult cuMemcpyAtoH_v2(void* dstHost, CUarray srcArray, std::size_t srcOffset, std::size_t ByteCount) {
    return from_array(dstHost, srcArray, srcOffset, ByteCount, nullptr, Waiting::as_synchronous);
}
CUresult cuMemcpyAtoHAsync_v2(void* dstHost, CUarray srcArray, std::size_t srcOffset, std::size_t ByteCount,
                              CUstream hStream) {
    return from_array(dstHost, srcArray, srcOffset, ByteCount, hStream, Waiting::as_asynchronous);
}

CUresult cuMemcpyAtoA_v2(CUarray dstArray, std::size_t dstOffset, CUarray srcArray, std::size_t srcOffset,
                         std::size_t ByteCount) {
    return remote_or_ask<calls::cuMemcpyAtoA_v2>(dstArray != nullptr && srcArray != nullptr, dstArray, dstOffset,
                                                 srcArray, srcOffset, ByteCount);
}
CUresult cuMemcpyAtoD_v2(CUdeviceptr dstDevice, CUarray srcArray, std::size_t srcOffset, std::size_t ByteCount) {
    return remote_or_ask<calls::cuMemcpyAtoD_v2>(srcArray != nullptr && is_known(dstDevice, ByteCount), dstDevice,
                                                 srcArray, srcOffset, ByteCount);
}
CUresult cuMemcpyDtoA_v2(CUarray dstArray, std::size_t dstOffset, CUdeviceptr srcDevice, std::size_t ByteCount) {
    return remote_or_ask<calls::cuMemcpyDtoA_v2>(dstArray != nullptr && is_known(srcDevice, ByteCount), dstArray,
                                                 dstOffset, srcDevice, ByteCount);
}

}  // namespace gpupool::client::entry
