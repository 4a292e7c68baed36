// Contexts: primary and created ones, and each thread's stack of current contexts.
#include "server/softgpu/api/export_tables.h"
#include "server/softgpu/api/objects.h"
#include "server/softgpu/exec/device_heap.h"
#include "server/softgpu/graph/capture.h"

namespace gpupool::softgpu {
namespace {

CUcontext handle_of(const ContextPtr& context) {
    return reinterpret_cast<CUcontext>(context.get());
}

// Keeps a destroyed context's object, since streams of other threads may still refer to it.
void keep_destroyed(const ContextPtr& context) {
    state().destroyed_contexts.add(context);
}

CUresult create(CUcontext* result, unsigned flags, CUdevice device) {
    Device* found;
    if (const CUresult error = find_device(device, found); error != CUDA_SUCCESS) {
        return error;
    }
    if (result == nullptr || (flags & ~static_cast<unsigned>(CU_CTX_FLAGS_MASK)) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    auto context = std::make_shared<Context>();
    context->device = found;
    context->flags = flags;
    context->api_version = 3020;
    context->open();
    state().contexts.add(context);
    context_stack().push_back(handle_of(context));
    *result = handle_of(context);
    return CUDA_SUCCESS;
}

// Resolves a context handle; NULL means the current context.
CUresult context_or_current(CUcontext handle, ContextPtr& result) {
    if (handle == nullptr) {
        return current_stream_context(result);
    }
    if (const CUresult error = ready(); error != CUDA_SUCCESS) {
        return error;
    }
    result = state().contexts.find(handle);
    if (result == nullptr) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    return result->active.load() ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

CUresult unknown_context(CUcontext handle) {
    return state().destroyed_contexts.find(handle) != nullptr ? CUDA_ERROR_CONTEXT_IS_DESTROYED
                                                              : CUDA_ERROR_INVALID_CONTEXT;
}

}  // namespace
}  // namespace gpupool::softgpu

using namespace gpupool::softgpu;

#define SOFTGPU_DEVICE(device, name) \
    Device* name;                    \
    if (const CUresult found_ = find_device(device, name); found_ != CUDA_SUCCESS) return found_

extern "C" {

CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext* result, CUdevice device) {
    SOFTGPU_DEVICE(device, found);
    SOFTGPU_NOT_NULL(result);
    const Lock lock(state_mutex());
    Context& context = *found->primary;
    // A reset closes the context but keeps the count of earlier retains.
    ++context.references;
    if (!context.active.load()) {
        context.open();
    }
    *result = handle_of(found->primary);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    SOFTGPU_DEVICE(device, found);
    Context& context = *found->primary;
    {
        const Lock lock(state_mutex());
        if (context.references <= context.of_greens) {
            return context.references == 0 ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_NOT_PERMITTED;
        }
        if (--context.references > 0 || !context.active.load()) {
            return CUDA_SUCCESS;
        }
    }
    notify_context_end(context);
    const Lock lock(state_mutex());
    if (context.references == 0 && context.active.load()) {
        context.close();
    }
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDevicePrimaryCtxRelease(CUdevice device) {
    const CUresult result = cuDevicePrimaryCtxRelease_v2(device);
    return result == CUDA_ERROR_INVALID_CONTEXT ? CUDA_SUCCESS : result;  // this form allows a release too many
}

CUresult CUDAAPI cuDevicePrimaryCtxReset_v2(CUdevice device) {
    SOFTGPU_DEVICE(device, found);
    {
        const Lock lock(state_mutex());
        if (found->primary->of_greens != 0) {
            return CUDA_ERROR_NOT_PERMITTED;
        }
    }
    notify_context_end(*found->primary);
    const Lock lock(state_mutex());
    if (found->primary->active.load()) {
        found->primary->close();
    }
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDevicePrimaryCtxReset(CUdevice device) {
    return cuDevicePrimaryCtxReset_v2(device);
}

CUresult CUDAAPI cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags) {
    SOFTGPU_DEVICE(device, found);
    if ((flags & ~static_cast<unsigned>(CU_CTX_FLAGS_MASK)) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    found->primary->flags = flags;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned flags) {
    return cuDevicePrimaryCtxSetFlags_v2(device, flags);
}

CUresult CUDAAPI cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
    SOFTGPU_DEVICE(device, found);
    if (flags == nullptr || active == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *flags = found->primary->flags;
    *active = found->primary->active.load() ? 1 : 0;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxCreate_v2(CUcontext* result, unsigned flags, CUdevice device) {
    return create(result, flags, device);
}

CUresult CUDAAPI cuCtxCreate_v3(CUcontext* result, CUexecAffinityParam*, int count, unsigned flags, CUdevice device) {
    // Execution affinity is reported as unsupported.
    return count != 0 ? CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY : create(result, flags, device);
}

CUresult CUDAAPI cuCtxCreate_v4(CUcontext* result, CUctxCreateParams* params, unsigned flags, CUdevice device) {
    if (params != nullptr && params->numExecAffinityParams != 0) {
        return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
    }
    if (params != nullptr && params->cigParams != nullptr) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    return create(result, flags, device);
}

CUresult CUDAAPI cuCtxDestroy_v2(CUcontext handle) {
    SOFTGPU_READY();
    auto context = state().contexts.find(handle);
    if (context == nullptr || context->primary || context->green()) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    notify_context_end(*context);
    if (state().contexts.remove(handle) == nullptr) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    auto& stack = context_stack();
    if (!stack.empty() && stack.back() == handle) {
        stack.pop_back();
    }
    context->close();
    keep_destroyed(context);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxPushCurrent_v2(CUcontext handle) {
    SOFTGPU_READY();
    if (state().contexts.find(handle) == nullptr) {
        return unknown_context(handle);
    }
    context_stack().push_back(handle);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxPopCurrent_v2(CUcontext* handle) {
    SOFTGPU_READY();
    auto& stack = context_stack();
    if (stack.empty()) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (handle != nullptr) {
        *handle = stack.back();
    }
    stack.pop_back();
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxSetCurrent(CUcontext handle) {
    SOFTGPU_READY();
    auto& stack = context_stack();
    if (handle == nullptr) {
        if (!stack.empty()) {
            stack.pop_back();
        }
        return CUDA_SUCCESS;
    }
    if (state().contexts.find(handle) == nullptr) {
        return unknown_context(handle);
    }
    if (stack.empty()) {
        stack.push_back(handle);
    } else {
        stack.back() = handle;
    }
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetCurrent(CUcontext* handle) {
    SOFTGPU_READY();
    SOFTGPU_NOT_NULL(handle);
    *handle = context_stack().empty() ? nullptr : context_stack().back();
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetDevice(CUdevice* device) {
    SOFTGPU_READY();
    SOFTGPU_NOT_NULL(device);
    if (context_stack().empty()) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    const auto context = state().contexts.find(context_stack().back());
    if (context == nullptr) {
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    }
    *device = context->device->ordinal;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetDevice_v2(CUdevice* device, CUcontext handle) {
    if (handle == nullptr) {
        return cuCtxGetDevice(device);
    }
    SOFTGPU_READY();
    SOFTGPU_NOT_NULL(device);
    const auto context = state().contexts.find(handle);
    if (context == nullptr) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    *device = context->device->ordinal;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetFlags(unsigned* flags) {
    SOFTGPU_CONTEXT(context);
    SOFTGPU_NOT_NULL(flags);
    *flags = context->flags | (context->primary ? unsigned{CU_CTX_MAP_HOST} : 0U);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxSetFlags(unsigned flags) {
    SOFTGPU_CONTEXT(context);
    const unsigned waiting = flags & CU_CTX_SCHED_MASK;
    if ((flags & ~static_cast<unsigned>(CU_CTX_FLAGS_MASK)) != 0 || (waiting & (waiting - 1)) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    context->flags = flags | (context->flags & unsigned{CU_CTX_MAP_HOST});
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetId(CUcontext handle, unsigned long long* id) {
    SOFTGPU_NOT_NULL(id);
    ContextPtr context;
    if (const CUresult error = context_or_current(handle, context); error != CUDA_SUCCESS) {
        return error;
    }
    *id = context->id;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetApiVersion(CUcontext handle, unsigned* version) {
    SOFTGPU_NOT_NULL(version);
    ContextPtr context;
    const CUresult error = context_or_current(handle, context);
    if (error == CUDA_ERROR_CONTEXT_IS_DESTROYED && handle != nullptr) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (error != CUDA_SUCCESS) {
        return error;
    }
    *version = context->api_version;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxSynchronize(void) {
    ContextPtr context;
    if (const CUresult error = current_stream_context(context); error != CUDA_SUCCESS) {
        return error;
    }
    if (const CUresult refused = refuse_wait(*context); refused != CUDA_SUCCESS) {
        return refused;
    }
    context->synchronize();
    return context->status();
}

CUresult CUDAAPI cuCtxSynchronize_v2(CUcontext handle) {
    ContextPtr context;
    if (const CUresult error = context_or_current(handle, context); error != CUDA_SUCCESS) {
        return error;
    }
    if (const CUresult refused = refuse_wait(*context); refused != CUDA_SUCCESS) {
        return refused;
    }
    context->synchronize();
    return context->status();
}

CUresult CUDAAPI cuCtxSetLimit(CUlimit limit, size_t value) {
    SOFTGPU_CONTEXT(context);
    SOFTGPU_NOT_WHILE_CAPTURING();
    if (limit < 0 || limit >= CU_LIMIT_MAX) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    UniqueLock lock(context->order_mutex);
    const auto found = context->limits.find(limit);
    if (found == context->limits.end()) {
        return CUDA_ERROR_UNSUPPORTED_LIMIT;
    }
    if (limit == CU_LIMIT_STACK_SIZE && value > (512U << 10)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (limit == CU_LIMIT_STACK_SIZE && value != found->second) {
        lock.unlock();
        context->synchronize_exclusively();
        lock.lock();
        if (!context->set_local_room(static_cast<std::uint32_t>(value))) {
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    if (limit == CU_LIMIT_MALLOC_HEAP_SIZE) {
        set_device_heap_limit(value);
    }
    found->second = value;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetLimit(size_t* value, CUlimit limit) {
    SOFTGPU_CONTEXT(context);
    SOFTGPU_NOT_NULL(value);
    if (limit < 0 || limit >= CU_LIMIT_MAX) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const Lock lock(context->order_mutex);
    const auto found = context->limits.find(limit);
    if (found == context->limits.end()) {
        return CUDA_ERROR_UNSUPPORTED_LIMIT;
    }
    *value = found->second;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetCacheConfig(CUfunc_cache* config) {
    SOFTGPU_CONTEXT(context);
    SOFTGPU_NOT_NULL(config);
    *config = context->cache_config;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxSetCacheConfig(CUfunc_cache config) {
    SOFTGPU_CONTEXT(context);
    context->cache_config = config;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetSharedMemConfig(CUsharedconfig* config) {
    SOFTGPU_CONTEXT(context);
    SOFTGPU_NOT_NULL(config);
    *config = CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxSetSharedMemConfig(CUsharedconfig config) {
    SOFTGPU_CONTEXT(context);
    return config >= CU_SHARED_MEM_CONFIG_DEFAULT_BANK_SIZE && config <= CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuCtxGetExecAffinity(CUexecAffinityParam* affinity, CUexecAffinityType type) {
    SOFTGPU_CONTEXT(context);
    SOFTGPU_NOT_NULL(affinity);
    if (type != CU_EXEC_AFFINITY_TYPE_SM_COUNT) {
        return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
    }
    int multiprocessors = 0;
    const CUresult error =
        cuDeviceGetAttribute(&multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, context->device->ordinal);
    affinity->type = type;
    affinity->param.smCount.val = static_cast<unsigned>(multiprocessors);
    return error;
}

// Its memory is that of the host: there is nothing to flush.
CUresult CUDAAPI cuFlushGPUDirectRDMAWrites(CUflushGPUDirectRDMAWritesTarget target,
                                            CUflushGPUDirectRDMAWritesScope scope) {
    SOFTGPU_CONTEXT(context);
    return target == CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX &&
                   (scope == CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER ||
                    scope == CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES)
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuCtxGetStreamPriorityRange(int* least, int* greatest) {
    SOFTGPU_CONTEXT(context);
    if (least != nullptr) {
        *least = 0;
    }
    if (greatest != nullptr) {
        *greatest = -5;
    }
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxResetPersistingL2Cache(void) {
    SOFTGPU_CONTEXT(context);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxEnablePeerAccess(CUcontext handle, unsigned flags) {
    SOFTGPU_CONTEXT(context);
    const auto peer = state().contexts.find(handle);
    if (peer == nullptr) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (peer->device == context->device) {
        return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    }
    const Lock lock(context->order_mutex);
    return context->peers.emplace(peer->device->ordinal, true).second ? CUDA_SUCCESS
                                                                      : CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
}

CUresult CUDAAPI cuCtxDisablePeerAccess(CUcontext handle) {
    SOFTGPU_CONTEXT(context);
    const auto peer = state().contexts.find(handle);
    if (peer == nullptr) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    const Lock lock(context->order_mutex);
    return context->peers.erase(peer->device->ordinal) != 0 ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
}

}  // extern "C"
