// Copies between contexts. Host memory is of no context, so a copy to or from it is like any other.

#include "client/calls/copy_parts.h"
#include "client/calls/copy_shapes.h"
#include "client/calls/handlers.h"

namespace gpupool::client::entry {
namespace {

bool is_known(CUdeviceptr address, std::size_t bytes) {
    CUresult result = CUDA_SUCCESS;
    const Session* const s = session(result);
    return s != nullptr && surely_holds(*s, address, bytes);
}

bool is_live(CUcontext handle) {
    CUresult result = CUDA_SUCCESS;
    const Session* const s = session(result);
    const ContextState* const context = s == nullptr ? nullptr : s->contexts.find(handle);
    return context != nullptr && context->live.load(std::memory_order_relaxed);
}

CUDA_MEMCPY3D without_contexts(const CUDA_MEMCPY3D_PEER& p) {
    CUDA_MEMCPY3D c{};
    c.srcXInBytes = p.srcXInBytes, c.srcY = p.srcY, c.srcZ = p.srcZ, c.srcLOD = p.srcLOD;
    c.srcMemoryType = p.srcMemoryType;
    c.srcHost = p.srcHost, c.srcDevice = p.srcDevice, c.srcArray = p.srcArray;
    c.srcPitch = p.srcPitch, c.srcHeight = p.srcHeight;
    c.dstXInBytes = p.dstXInBytes, c.dstY = p.dstY, c.dstZ = p.dstZ, c.dstLOD = p.dstLOD;
    c.dstMemoryType = p.dstMemoryType;
    c.dstHost = p.dstHost, c.dstDevice = p.dstDevice, c.dstArray = p.dstArray;
    c.dstPitch = p.dstPitch, c.dstHeight = p.dstHeight;
    c.WidthInBytes = p.WidthInBytes, c.Height = p.Height, c.Depth = p.Depth;
    return c;
}

// No context means the current one.
bool may_be_its_context(CUmemorytype type, CUcontext context) {
    return type != CU_MEMORYTYPE_DEVICE || context == nullptr || is_live(context);
}

CUresult copy_3d_peer(const CUDA_MEMCPY3D_PEER* copy, CUstream stream, Waiting waiting) {
    Session* s = nullptr;
    if (const CUresult result = begin_copy(s); result != CUDA_SUCCESS) {
        return result;
    }
    if (copy == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const CUDA_MEMCPY3D given = without_contexts(*copy);
    CUDA_MEMCPY3D c = given;
    resolve_unified(*s, c);
    if (!may_be_its_context(c.srcMemoryType, copy->srcContext) ||
        !may_be_its_context(c.dstMemoryType, copy->dstContext)) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    // Only a copy in a stream can meet a capture: the others are made in the legacy stream.
    if (s->captures.any() && !is_empty(c)) {
        if (const CUresult refused = s->captures.refuse_if_capturing(stream_key(stream)); refused != CUDA_SUCCESS) {
            return refused;
        }
    }
    const bool hosts = c.srcMemoryType == CU_MEMORYTYPE_HOST || c.dstMemoryType == CU_MEMORYTYPE_HOST;
    const bool between =
        copy->srcContext != nullptr && copy->dstContext != nullptr && copy->srcContext != copy->dstContext;
    if (hosts || !between || is_empty(c) || is_too_large(c)) {
        return copy_shaped(given, stream, waiting);
    }
    if (!may_hold(*s, c)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return remote<calls::gpCopyPeer>(&c, copy->dstContext, copy->srcContext, stream);
}

}  // namespace

CUresult cuMemcpyPeer(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice, CUcontext srcContext,
                      std::size_t ByteCount) {
    return remote_or_ask<calls::cuMemcpyPeer>(
        is_known(dstDevice, ByteCount) && is_known(srcDevice, ByteCount) && is_live(dstContext) && is_live(srcContext),
        dstDevice, dstContext, srcDevice, srcContext, ByteCount);
}
CUresult cuMemcpyPeerAsync(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice, CUcontext srcContext,
                           std::size_t ByteCount, CUstream hStream) {
    return remote_or_ask<calls::cuMemcpyPeerAsync>(
        is_known(dstDevice, ByteCount) && is_known(srcDevice, ByteCount) && is_live(dstContext) && is_live(srcContext),
        dstDevice, dstContext, srcDevice, srcContext, ByteCount, hStream);
}
CUresult cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER* pCopy) {
    return copy_3d_peer(pCopy, nullptr, Waiting::as_synchronous);
}
CUresult cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER* pCopy, CUstream hStream) {
    return copy_3d_peer(pCopy, hStream, Waiting::as_asynchronous);
}

}  // namespace gpupool::client::entry
