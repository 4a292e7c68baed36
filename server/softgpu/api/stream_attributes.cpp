// Stream attributes and profiler switches. They are stored and returned, but have no effect here.
#include <cstring>

#include "server/softgpu/api/objects.h"
#include "server/softgpu/graph/capture.h"

namespace gpupool::softgpu {
namespace {

bool known_attribute(CUstreamAttrID attribute) {
    switch (attribute) {
        case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
        case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
        case CU_LAUNCH_ATTRIBUTE_PRIORITY:
        case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
        case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN: return true;
        default: return false;
    }
}

CUstreamAttrValue value_of(Stream& stream, CUstreamAttrID attribute) {
    const Lock lock(stream.attribute_mutex);
    if (const auto found = stream.attributes.find(attribute); found != stream.attributes.end()) {
        return found->second;
    }
    CUstreamAttrValue value;
    std::memset(&value, 0, sizeof value);
    if (attribute == CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY) {
        value.syncPolicy = CU_SYNC_POLICY_AUTO;
    }
    if (attribute == CU_LAUNCH_ATTRIBUTE_PRIORITY) {
        value.priority = stream.priority;
    }
    if (attribute == CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP) {
        value.memSyncDomainMap.remote = 1;
    }
    return value;
}

}  // namespace
}  // namespace gpupool::softgpu

using namespace gpupool::softgpu;

extern "C" {

CUresult CUDAAPI cuStreamGetAttribute(CUstream handle, CUstreamAttrID attribute, CUstreamAttrValue* value) {
    SOFTGPU_READY();
    SOFTGPU_STREAM(handle, stream);
    if (value == nullptr || !known_attribute(attribute)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *value = value_of(*stream, attribute);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamSetAttribute(CUstream handle, CUstreamAttrID attribute, const CUstreamAttrValue* value) {
    SOFTGPU_READY();
    SOFTGPU_STREAM(handle, stream);
    if (value == nullptr || !known_attribute(attribute)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const Lock lock(stream->attribute_mutex);
    stream->attributes[attribute] = *value;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamCopyAttributes(CUstream to_handle, CUstream from_handle) {
    SOFTGPU_READY();
    SOFTGPU_STREAM(to_handle, to);
    SOFTGPU_STREAM(from_handle, from);
    std::map<int, CUstreamAttrValue> copied;
    {
        const Lock lock(from->attribute_mutex);
        copied = from->attributes;
    }
    const Lock lock(to->attribute_mutex);
    to->attributes = std::move(copied);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamAttachMemAsync(CUstream handle, CUdeviceptr pointer, size_t, unsigned flags) {
    SOFTGPU_READY();
    SOFTGPU_STREAM(handle, stream);
    if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST && flags != CU_MEM_ATTACH_SINGLE) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    Allocation found;
    if (!state().allocations.find(pointer, found) || found.kind != MemoryKind::managed) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuProfilerInitialize(const char*, const char*, CUoutput_mode) {
    return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult CUDAAPI cuProfilerStart() {
    SOFTGPU_CONTEXT(context);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuProfilerStop() {
    SOFTGPU_CONTEXT(context);
    return CUDA_SUCCESS;
}

}  // extern "C"
