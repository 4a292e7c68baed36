// Contexts: the client keeps which one is current; the server makes and ends them.

#include "client/calls/contexts.h"
#include "client/calls/handlers.h"
#include "client/calls/memory.h"
#include "client/calls/store.h"
#include "client/calls/texture.h"
#include "client/core/dispatch/remote.h"
#include "client/core/images/code.h"
#include "protocol/export_tables/registry.h"

namespace gpupool::client::entry {
namespace {

// Forgets the memory that ended with its context; the server has freed it. First waits for other contexts' work that
// uses the memory, which must not access later allocations at the same address.
void forget_memory(Session& s, ContextState& context) {
    (void)wait_for_users(s, context.device, &context);
    for (const MemoryRange& range : s.memory.end_context(&context)) {
        if (range.kind == MemoryKind::device) {
            s.heaps[static_cast<std::size_t>(range.device)]->free(range.base);
        } else if (!range.on_device()) {
            s.host_mirrors.remove(range.base);
        }
    }
    s.pools[static_cast<std::size_t>(context.device)]->end(context);
}

CUresult make_current(CUcontext ctx, bool push) {
    CUresult result = CUDA_SUCCESS;
    Session* s = session(result);
    if (s == nullptr) {
        return result;
    }
    ThreadState& thread = this_thread();
    if (ctx == nullptr) {
        if (push) {
            return CUDA_ERROR_INVALID_CONTEXT;
        }
        if (!thread.stack.empty()) {
            thread.stack.pop_back();
        }
        return CUDA_SUCCESS;
    }
    ContextState* context = s->contexts.find(ctx);
    if (context == nullptr || (!context->primary && !context->green() && !context->live)) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (push || thread.stack.empty()) {
        thread.stack.push_back(context);
    } else {
        thread.stack.back() = context;
    }
    return CUDA_SUCCESS;
}

CUresult pop(CUcontext* pctx) {
    ThreadState& thread = this_thread();
    if (thread.stack.empty()) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (pctx != nullptr) {
        *pctx = thread.stack.back()->handle;
    }
    thread.stack.pop_back();
    return CUDA_SUCCESS;
}

CUresult create(CUcontext* pctx, CUexecAffinityParam* affinities, int count, unsigned flags, CUdevice dev) {
    CUresult result = CUDA_SUCCESS;
    Session* s = session(result);
    if (s == nullptr) {
        return result;
    }
    if (pctx == nullptr || count < 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!s->devices.valid(dev)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    ContextState& context = s->contexts.add(dev, flags, false);
    CUcontext handle = context.handle;
    result = remote<calls::gpContextCreate>(&handle, flags, dev, static_cast<const CUexecAffinityParam*>(affinities),
                                            static_cast<unsigned>(count));
    if (result != CUDA_SUCCESS) {
        return result;
    }
    context.live = true;
    this_thread().stack.push_back(&context);
    *pctx = context.handle;
    return CUDA_SUCCESS;
}

// Forgets what belonged to a context that has ended: its captures, its kernels' functions, its textures and its memory.
void forget_objects(Session& s, ContextState& context) {
    s.captures.ended(context);
    forget_kernel_functions(context.handle);
    forget_textures(context.handle);
    forget_memory(s, context);
    if (!context.green()) {
        context.streams = context.streams_reserved = 0;
    }
}

CUresult destroy(CUcontext ctx) {
    CUresult result = CUDA_SUCCESS;
    Session* s = session(result);
    if (s == nullptr) {
        return result;
    }
    if (ctx == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    ContextState* context = s->contexts.find(ctx);
    if (context == nullptr || context->primary || context->green() || !context->live) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    export_tables::context_ends(ctx);
    result = remote<calls::gpContextDestroy>(ctx);
    context->live = false;
    context->lost = CUDA_SUCCESS;  // otherwise nothing more could be sent for it, not even to release its memory
    forget_objects(*s, *context);
    ThreadState& thread = this_thread();
    if (thread.current() == context) {
        thread.stack.pop_back();
    }
    return result;
}

CUresult end_primary(Session& s, ContextState& context, bool reset) {
    export_tables::context_ends(context.handle);
    const CUresult result =
        remote<calls::gpPrimaryContextEnd>(context.handle, context.device, static_cast<unsigned>(reset ? 1 : 0));
    context.live = false;
    context.lost = CUDA_SUCCESS;
    context.forget_limits();
    forget_objects(s, context);
    return result;
}

// Calls `act` with the session and the device's primary context.
template <class Act>
CUresult with_primary(CUdevice dev, Act act) {
    CUresult result = CUDA_SUCCESS;
    Session* const s = session(result);
    if (s == nullptr) {
        return result;
    }
    return s->devices.valid(dev) ? act(*s, s->contexts.primary(dev)) : CUDA_ERROR_INVALID_DEVICE;
}

// Makes the primary context unless it is live. The caller holds the mutex of primary contexts.
CUresult make_primary(ContextState& context) {
    if (context.live) {
        return CUDA_SUCCESS;
    }
    CUcontext handle = context.handle;
    const CUresult result = remote<calls::cuDevicePrimaryCtxRetain>(&handle, context.device);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    context.live = true;
    if (const unsigned flags = context.flags; flags != 0) {
        remote<calls::cuDevicePrimaryCtxSetFlags_v2>(context.device, flags);
    }
    return CUDA_SUCCESS;
}

CUresult release(CUdevice dev) {
    return with_primary(dev, [](Session& s, ContextState& context) {
        const Lock lock(s.contexts.primary_mutex);
        const auto device = static_cast<std::size_t>(context.device);
        unsigned& references = s.contexts.primary_references[device];
        if (references <= s.contexts.primary_greens[device]) {  // the rest are not the program's to release
            return references == 0 ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_NOT_PERMITTED;
        }
        // A reset has ended the context, but earlier retains still count.
        return --references == 0 && context.live ? end_primary(s, context, false) : CUDA_SUCCESS;
    });
}

CUresult reset(CUdevice dev) {
    return with_primary(dev, [](Session& s, ContextState& context) {
        const Lock lock(s.contexts.primary_mutex);
        if (s.contexts.primary_greens[static_cast<std::size_t>(context.device)] != 0) {
            return CUDA_ERROR_NOT_PERMITTED;
        }
        return context.live ? end_primary(s, context, true) : CUDA_SUCCESS;
    });
}

CUresult set_flags(CUdevice dev, unsigned flags) {
    constexpr unsigned kSettable = CU_CTX_SCHED_MASK | CU_CTX_LMEM_RESIZE_TO_MAX | CU_CTX_COREDUMP_ENABLE |
                                   CU_CTX_USER_COREDUMP_ENABLE | CU_CTX_SYNC_MEMOPS;
    const unsigned waiting = flags & CU_CTX_SCHED_MASK;
    if ((flags & ~kSettable) != 0 || (waiting & (waiting - 1)) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return with_primary(dev, [&](Session&, ContextState& context) {
        context.flags = flags;
        return context.live ? remote<calls::cuDevicePrimaryCtxSetFlags_v2>(dev, flags) : CUDA_SUCCESS;
    });
}

CUresult synchronize(ContextState* context) {
    if (context == nullptr) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (!context->live) {
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    }
    Captures& captures = this_session().captures;
    if (const CUresult result = captures.any() ? captures.before_context_wait(context) : CUDA_SUCCESS;
        result != CUDA_SUCCESS) {
        return result;
    }
    Session& s = this_session();
    return s.nothing_since_wait(*context) ? known_answer(s, context) : wait_for_context(*context);
}

ContextState* context_or_current(CUcontext ctx) {
    CUresult result = CUDA_SUCCESS;
    Session* s = session(result);
    if (s == nullptr) {
        return nullptr;
    }
    return ctx == nullptr ? this_thread().current() : s->contexts.find(ctx);
}

}  // namespace

CUresult cuDevicePrimaryCtxRetain(CUcontext* pctx, CUdevice dev) {
    CUresult result = CUDA_SUCCESS;
    Session* s = session(result);
    if (s == nullptr) {
        return result;
    }
    if (pctx == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!s->devices.valid(dev)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    ContextState& context = s->contexts.primary(dev);
    const Lock lock(s->contexts.primary_mutex);
    result = make_primary(context);
    if (result == CUDA_SUCCESS) {
        ++s->contexts.primary_references[static_cast<std::size_t>(dev)];
        *pctx = context.handle;
    }
    return result;
}

CUresult find_context(CUcontext handle, ContextState*& context) {
    CUresult result = CUDA_SUCCESS;
    Session* const s = session(result);
    if (s == nullptr) {
        return result;
    }
    context = handle == nullptr ? nullptr : s->contexts.find(handle);
    if (context == nullptr) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    return context->live ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

CUresult find_context(CUgreenCtx handle, ContextState*& context) {
    const CUresult result = find_context(codec::from_wire<CUcontext>(codec::to_wire(handle)), context);
    return context != nullptr && !context->green() ? CUDA_ERROR_INVALID_CONTEXT : result;
}

CUresult retain_for_green(CUdevice device) {
    return with_primary(device, [](Session& s, ContextState& context) {
        const Lock lock(s.contexts.primary_mutex);
        const CUresult result = make_primary(context);
        if (result == CUDA_SUCCESS) {
            ++s.contexts.primary_references[static_cast<std::size_t>(context.device)];
            ++s.contexts.primary_greens[static_cast<std::size_t>(context.device)];
        }
        return result;
    });
}

CUresult release_of_green(CUdevice device) {
    return with_primary(device, [](Session& s, ContextState& context) {
        const Lock lock(s.contexts.primary_mutex);
        --s.contexts.primary_greens[static_cast<std::size_t>(context.device)];
        const unsigned left = --s.contexts.primary_references[static_cast<std::size_t>(context.device)];
        return left == 0 ? end_primary(s, context, false) : CUDA_SUCCESS;
    });
}

CUresult cuDevicePrimaryCtxRelease(CUdevice dev) {
    const CUresult result = release(dev);
    return result == CUDA_ERROR_INVALID_CONTEXT ? CUDA_SUCCESS : result;  // this form allows a release too many
}
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev) {
    return release(dev);
}
CUresult cuDevicePrimaryCtxReset(CUdevice dev) {
    return reset(dev);
}
CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev) {
    return reset(dev);
}
CUresult cuDevicePrimaryCtxSetFlags(CUdevice dev, unsigned flags) {
    return with_primary(dev, [&](Session&, ContextState& context) {
        return context.live ? CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE : set_flags(dev, flags);
    });
}
CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice dev, unsigned flags) {
    return set_flags(dev, flags);
}

CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned* flags, int* active) {
    CUresult result = CUDA_SUCCESS;
    Session* s = session(result);
    if (s == nullptr) {
        return result;
    }
    if (!s->devices.valid(dev)) {
        return CUDA_ERROR_INVALID_DEVICE;
    }
    if (flags == nullptr || active == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const ContextState& context = s->contexts.primary(dev);
    *flags = context.flags;
    *active = context.live ? 1 : 0;
    return CUDA_SUCCESS;
}

CUresult cuCtxCreate(CUcontext* pctx, unsigned flags, CUdevice dev) {
    return create(pctx, nullptr, 0, flags, dev);
}
CUresult cuCtxCreate_v2(CUcontext* pctx, unsigned flags, CUdevice dev) {
    return create(pctx, nullptr, 0, flags, dev);
}
CUresult cuCtxCreate_v3(CUcontext* pctx, CUexecAffinityParam* paramsArray, int numParams, unsigned flags,
                        CUdevice dev) {
    return create(pctx, paramsArray, numParams, flags, dev);
}
CUresult cuCtxCreate_v4(CUcontext* pctx, CUctxCreateParams* ctxCreateParams, unsigned flags, CUdevice dev) {
    if (ctxCreateParams == nullptr) {
        return create(pctx, nullptr, 0, flags, dev);
    }
    if (ctxCreateParams->cigParams != nullptr) {
        return CUDA_ERROR_NOT_SUPPORTED;  // contexts shared with a graphics API of this machine
    }
    return create(pctx, ctxCreateParams->execAffinityParams, ctxCreateParams->numExecAffinityParams, flags, dev);
}

CUresult cuCtxDestroy(CUcontext ctx) {
    return destroy(ctx);
}
CUresult cuCtxDestroy_v2(CUcontext ctx) {
    return destroy(ctx);
}

CUresult cuCtxGetCurrent(CUcontext* pctx) {
    if (pctx == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const ContextState* current = this_thread().current();
    *pctx = current == nullptr ? nullptr : current->handle;
    return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext ctx) {
    return make_current(ctx, false);
}
CUresult cuCtxPushCurrent(CUcontext ctx) {
    return make_current(ctx, true);
}
CUresult cuCtxPushCurrent_v2(CUcontext ctx) {
    return make_current(ctx, true);
}
CUresult cuCtxPopCurrent(CUcontext* pctx) {
    return pop(pctx);
}
CUresult cuCtxPopCurrent_v2(CUcontext* pctx) {
    return pop(pctx);
}

CUresult cuCtxGetDevice(CUdevice* device) {
    return entry::cuCtxGetDevice_v2(device, nullptr);
}

CUresult cuCtxGetDevice_v2(CUdevice* device, CUcontext ctx) {
    const ContextState* context = context_or_current(ctx);
    if (context == nullptr) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    return store(device, context->device);
}

CUresult cuCtxGetApiVersion(CUcontext ctx, unsigned* version) {
    constexpr unsigned kApiVersion = 3020;
    const ContextState* context = context_or_current(ctx);
    if (context == nullptr || !context->live) {
        return CUDA_ERROR_INVALID_CONTEXT;  // libcudart takes this error to mean "the primary context is inactive"
    }
    return store(version, kApiVersion);
}

CUresult cuCtxGetFlags(unsigned* flags) {
    ContextState* context = nullptr;
    if (const CUresult result = usable_context(context); result != CUDA_SUCCESS) {
        return result;
    }
    const ContextState& owner = context->owner();
    return store(flags, owner.flags | (owner.primary ? unsigned{CU_CTX_MAP_HOST} : 0U));
}

CUresult cuCtxSetFlags(unsigned flags) {
    ContextState* context = nullptr;
    if (const CUresult result = usable_context(context); result != CUDA_SUCCESS) {
        return result;
    }
    const CUresult result = remote<calls::cuCtxSetFlags>(flags);
    if (result == CUDA_SUCCESS) {
        ContextState& owner = context->owner();
        const unsigned kept = owner.flags & unsigned{CU_CTX_MAP_HOST};
        owner.flags = kept | (flags & ~unsigned{CU_CTX_COREDUMP_ENABLE | CU_CTX_USER_COREDUMP_ENABLE});
    }
    return result;
}

CUresult cuCtxGetId(CUcontext ctx, unsigned long long* ctxId) {
    const ContextState* context = context_or_current(ctx);
    if (context == nullptr) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (!context->live) {
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    }
    return store(ctxId, context->id);
}

CUresult cuCtxAttach(CUcontext* pctx, unsigned flags) {
    ContextState* context = nullptr;
    if (const CUresult result = usable_context(context); result != CUDA_SUCCESS) {
        return result;
    }
    if (pctx == nullptr || flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    ++context->attached;
    *pctx = context->handle;
    return CUDA_SUCCESS;
}

CUresult cuCtxDetach(CUcontext ctx) {
    ContextState* context = this_thread().current();
    if (context == nullptr || context->handle != ctx || context->green() || !context->live) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    return --context->attached == 0 && !context->primary ? destroy(context->handle) : CUDA_SUCCESS;
}

CUresult cuCtxGetStreamPriorityRange(int* leastPriority, int* greatestPriority) {
    ContextState* context = nullptr;
    CUresult result = usable_context(context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    const Device& device = this_session().devices.devices[static_cast<std::size_t>(context->device)];
    if (leastPriority != nullptr) {
        *leastPriority = device.least_priority;
    }
    if (greatestPriority != nullptr) {
        *greatestPriority = device.greatest_priority;
    }
    return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize() {
    return synchronize(this_thread().current());
}

CUresult cuCtxSynchronize_v2(CUcontext ctx) {
    return synchronize(context_or_current(ctx));
}

CUresult cuCtxEnablePeerAccess(CUcontext peerContext, unsigned Flags) {
    return remote<calls::cuCtxEnablePeerAccess>(peerContext, Flags);
}

CUresult cuCtxDisablePeerAccess(CUcontext peerContext) {
    return remote<calls::cuCtxDisablePeerAccess>(peerContext);
}

// Cached, because libraries query the stack size before every launch.
CUresult cuCtxGetLimit(std::size_t* pvalue, CUlimit limit) {
    ContextState* context = nullptr;
    CUresult result = usable_context(context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (pvalue == nullptr || limit < 0 || limit >= CU_LIMIT_MAX) {
        return pvalue == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_UNSUPPORTED_LIMIT;
    }
    std::atomic<std::size_t>& known = context->owner().limits[static_cast<std::size_t>(limit)];
    if (const std::size_t value = known.load(std::memory_order_relaxed); value != ContextState::kUnknownLimit) {
        *pvalue = value;
        return CUDA_SUCCESS;
    }
    result = remote<calls::cuCtxGetLimit>(pvalue, limit);
    if (result == CUDA_SUCCESS) {
        known.store(*pvalue, std::memory_order_relaxed);
    }
    return result;
}

CUresult cuCtxSetLimit(CUlimit limit, std::size_t value) {
    ContextState* const context = this_thread().current();
    if (limit == CU_LIMIT_STACK_SIZE && context != nullptr && !this_session().captures.any()) {
        // As the driver does. Held work on the server must run with the stack size that it was sent with.
        wait_without_errors(this_session(), context->owner());
    }
    const CUresult result = remote<calls::cuCtxSetLimit>(limit, value);
    if (context != nullptr) {
        context->owner().forget_limits();
    }
    return result;
}

}  // namespace gpupool::client::entry
