// Streams, events and host functions.
#include "server/softgpu/api/objects.h"
#include "server/softgpu/graph/capture.h"

using namespace gpupool::softgpu;

CUresult gpupool::softgpu::make_stream(CUstream* result, const ContextPtr& context, unsigned flags, int priority) {
    constexpr int kGreatestPriority = -5;
    priority = std::min(0, std::max(priority, kGreatestPriority));
    auto stream = std::make_shared<Stream>(*context, flags, priority);
    {
        const SharedLock submitting(context->submission_mutex);
        const Lock lock(context->order_mutex);
        context->add_stream(stream);
    }
    state().streams.add(stream);
    *result = reinterpret_cast<CUstream>(stream.get());
    return CUDA_SUCCESS;
}

namespace {

CUresult create_stream(CUstream* result, unsigned flags, int priority) {
    ContextPtr context;
    if (const CUresult error = current_stream_context(context); error != CUDA_SUCCESS) {
        return error;
    }
    if (result == nullptr || flags > CU_STREAM_NON_BLOCKING) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return make_stream(result, context, context->green() ? static_cast<unsigned>(CU_STREAM_NON_BLOCKING) : flags,
                       priority);
}

#define SOFTGPU_EVENT(handle, name)                \
    SOFTGPU_READY();                               \
    const auto name = state().events.find(handle); \
    if (name == nullptr) return CUDA_ERROR_INVALID_HANDLE

std::shared_ptr<Moment> moment_of(Event& event) {
    const Lock lock(event.mutex);
    return event.moment;
}

CUresult elapsed(float* milliseconds, CUevent from, CUevent to) {
    SOFTGPU_EVENT(from, first);
    SOFTGPU_EVENT(to, second);
    SOFTGPU_NOT_NULL(milliseconds);
    for (const auto& event : {first, second}) {
        if (const CUresult refused = refuse_captured(*event); refused != CUDA_SUCCESS) {
            return refused;
        }
    }
    if (((first->flags | second->flags) & CU_EVENT_DISABLE_TIMING) != 0) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    const auto a = moment_of(*first), b = moment_of(*second);
    if (a == nullptr || b == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (!a->is_reached() || !b->is_reached()) {
        return CUDA_ERROR_NOT_READY;
    }
    *milliseconds = std::chrono::duration<float, std::milli>(b->at - a->at).count();
    return CUDA_SUCCESS;
}

}  // namespace

CUresult gpupool::softgpu::record_event(CUevent handle, CUstream stream_handle, bool external) {
    SOFTGPU_EVENT(handle, event);
    SOFTGPU_STREAM(stream_handle, stream);
    if (event->context != &stream->context.owner()) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    CUresult result;
    if (record_captured(event, stream, external, result)) {
        return result;
    }
    auto moment = std::make_shared<Moment>();
    const SharedLock submitting(stream->context.submission_mutex);
    {
        const Lock lock(event->mutex);
        event->moment = moment;
    }
    submit_ordered(
        stream, []() -> CUresult { return CUDA_SUCCESS; }, moment);
    return CUDA_SUCCESS;
}

extern "C" {

CUresult CUDAAPI cuStreamCreate(CUstream* stream, unsigned flags) {
    return create_stream(stream, flags, 0);
}
CUresult CUDAAPI cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int priority) {
    return create_stream(stream, flags, priority);
}

CUresult CUDAAPI cuStreamDestroy_v2(CUstream handle) {
    SOFTGPU_READY();
    if (const auto known = state().streams.find(handle);
        known != nullptr && known->context.green() && !known->context.active.load()) {
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    }
    // Outstanding work continues; the stream's thread keeps the stream alive until it is complete.
    auto stream = state().streams.remove(handle);
    if (stream == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    forget_stream(*stream);
    if (!stream->is_done(stream->submitted())) {
        stream->submit([stream]() -> CUresult { return CUDA_SUCCESS; });
    }
    stream->retire();
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamSynchronize(CUstream handle) {
    SOFTGPU_STREAM(handle, stream);
    if (const CUresult refused = refuse_wait(stream); refused != CUDA_SUCCESS) {
        return refused;
    }
    if (is_legacy(*stream)) {
        // Work of the legacy stream waits for the blocking streams, so wait for an empty piece of work.
        stream->wait(submit_ordered(stream, []() -> CUresult { return CUDA_SUCCESS; }));
    } else {
        stream->wait(stream->submitted());
    }
    return stream->context.status();
}

CUresult CUDAAPI cuStreamQuery(CUstream handle) {
    SOFTGPU_STREAM(handle, stream);
    if (const CUresult refused = refuse_wait(stream); refused != CUDA_SUCCESS) {
        return refused;
    }
    bool done = stream->is_done(stream->submitted());
    if (is_legacy(*stream)) {
        const Lock lock(stream->context.order_mutex);
        for (const auto& other : stream->context.all_streams()) {
            if ((other->flags & CU_STREAM_NON_BLOCKING) == 0) {
                done &= other->is_done(other->submitted());
            }
        }
    }
    if (const CUresult status = stream->context.status(); status != CUDA_SUCCESS) {
        return status;
    }
    return done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult CUDAAPI cuStreamGetFlags(CUstream handle, unsigned* flags) {
    SOFTGPU_STREAM(handle, stream);
    SOFTGPU_NOT_NULL(flags);
    // A query of the flags invalidates a capture; queries of priority and id do not.
    if (const CUresult refused = refuse_captured(stream); refused != CUDA_SUCCESS) {
        return refused;
    }
    *flags = stream->flags;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamGetPriority(CUstream handle, int* priority) {
    SOFTGPU_STREAM(handle, stream);
    SOFTGPU_NOT_NULL(priority);
    CUstreamAttrValue value;
    const CUresult result = cuStreamGetAttribute(handle, CU_LAUNCH_ATTRIBUTE_PRIORITY, &value);
    *priority = value.priority;
    return result;
}

CUresult CUDAAPI cuStreamGetId(CUstream handle, unsigned long long* id) {
    SOFTGPU_STREAM(handle, stream);
    SOFTGPU_NOT_NULL(id);
    *id = stream->id;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamGetDevice(CUstream handle, CUdevice* device) {
    SOFTGPU_STREAM(handle, stream);
    SOFTGPU_NOT_NULL(device);
    *device = stream->context.device->ordinal;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamGetCtx(CUstream handle, CUcontext* context) {
    SOFTGPU_STREAM(handle, stream);
    SOFTGPU_NOT_NULL(context);
    *context = reinterpret_cast<CUcontext>(&stream->context);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamGetCtx_v2(CUstream handle, CUcontext* context, CUgreenCtx* green) {
    SOFTGPU_STREAM(handle, stream);
    if (context == nullptr && green == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (context != nullptr) {
        *context = reinterpret_cast<CUcontext>(&stream->context.owner());
    }
    if (green != nullptr) {
        *green = stream->context.green() ? reinterpret_cast<CUgreenCtx>(&stream->context) : nullptr;
    }
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamGetGreenCtx(CUstream handle, CUgreenCtx* green) {
    SOFTGPU_NOT_NULL(green);
    return cuStreamGetCtx_v2(handle, nullptr, green);
}

CUresult CUDAAPI cuStreamWaitEvent(CUstream stream_handle, CUevent handle, unsigned flags) {
    SOFTGPU_EVENT(handle, event);
    SOFTGPU_STREAM(stream_handle, stream);
    if (flags > CU_EVENT_WAIT_EXTERNAL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result;
    if (wait_captured(event, stream, flags == CU_EVENT_WAIT_EXTERNAL, result)) {
        return result;
    }
    const auto moment = moment_of(*event);
    if (moment == nullptr || moment->is_reached()) {
        return CUDA_SUCCESS;
    }
    Context* context = &stream->context;
    submit_ordered(stream, [moment, context]() -> CUresult {
        moment->wait(context->stop);
        return CUDA_SUCCESS;
    });
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuLaunchHostFunc(CUstream handle, CUhostFn function, void* data) {
    SOFTGPU_STREAM(handle, stream);
    SOFTGPU_NOT_NULL(function);
    CUresult result;
    if (captured(
            stream, [&] { return host_payload(function, data); }, result)) {
        return result;
    }
    Context* context = &stream->context;
    submit_ordered(stream, [=] { return run_host_function(*context, function, data); });
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamAddCallback(CUstream handle, CUstreamCallback function, void* data, unsigned flags) {
    SOFTGPU_STREAM(handle, stream);
    if (function == nullptr || flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (const CUresult refused = refuse_captured(stream); refused != CUDA_SUCCESS) {
        return refused;
    }
    Context* context = &stream->context;
    submit_ordered(stream, [=]() -> CUresult {
        const Lock lock(context->host_function_mutex);
        in_host_function() = true;
        function(handle, context->status(), data);
        in_host_function() = false;
        return CUDA_SUCCESS;
    });
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuEventCreate(CUevent* result, unsigned flags) {
    SOFTGPU_CONTEXT(context);
    if (result == nullptr || (flags & ~7U) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    // Timing is not possible with an interprocess event.
    if ((flags & CU_EVENT_INTERPROCESS) != 0 && (flags & CU_EVENT_DISABLE_TIMING) == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    auto event = std::make_shared<Event>();
    event->context = context.get();
    event->keeps = context;
    event->flags = flags;
    state().events.add(event);
    *result = reinterpret_cast<CUevent>(event.get());
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuEventDestroy_v2(CUevent handle) {
    SOFTGPU_READY();
    return state().events.remove(handle) == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}

CUresult CUDAAPI cuEventRecord(CUevent event, CUstream stream) {
    return record_event(event, stream, false);
}

CUresult CUDAAPI cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags) {
    return flags > CU_EVENT_RECORD_EXTERNAL ? CUDA_ERROR_INVALID_VALUE
                                            : record_event(event, stream, flags == CU_EVENT_RECORD_EXTERNAL);
}

CUresult CUDAAPI cuEventQuery(CUevent handle) {
    SOFTGPU_EVENT(handle, event);
    if (const CUresult refused = refuse_wait(*event); refused != CUDA_SUCCESS) {
        return refused;
    }
    const auto moment = moment_of(*event);
    const bool done = moment == nullptr || moment->is_reached();
    if (const CUresult status = event->context->status(); status != CUDA_SUCCESS) {
        return status;
    }
    return done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult CUDAAPI cuEventSynchronize(CUevent handle) {
    SOFTGPU_EVENT(handle, event);
    if (const CUresult refused = refuse_wait(*event); refused != CUDA_SUCCESS) {
        return refused;
    }
    if (const auto moment = moment_of(*event); moment != nullptr) {
        moment->wait(event->context->stop);
    }
    return event->context->status();
}

CUresult CUDAAPI cuEventElapsedTime(float* milliseconds, CUevent from, CUevent to) {
    return elapsed(milliseconds, from, to);
}
CUresult CUDAAPI cuEventElapsedTime_v2(float* milliseconds, CUevent from, CUevent to) {
    return elapsed(milliseconds, from, to);
}

}  // extern "C"
