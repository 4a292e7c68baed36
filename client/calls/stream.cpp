// Streams. The client chooses their handles and the server creates them, so the calls need not wait.

#include "client/calls/contexts.h"
#include "client/calls/copy_shapes.h"
#include "client/calls/handlers.h"
#include "client/calls/store.h"
#include "client/calls/streams.h"
#include "client/core/dispatch/remote.h"

namespace gpupool::client::entry {

CUresult find_stream(CUstream stream, StreamInfo& info) {
    if (Streams::is_special(stream)) {
        info = {};
        const CUresult result = usable_context(info.context);
        return result != CUDA_SUCCESS
                   ? result
                   : this_session().streams.check(stream, info.context, this_thread().per_thread_default);
    }
    if (!this_session().streams.find(stream, info)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    return info.ended() ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_SUCCESS;
}

namespace {

CUresult check_stream(CUstream stream) {
    StreamInfo info;
    return find_stream(stream, info);
}

// A stream's priority has changed.
void note_priority(CUstream stream, int priority) {
    StreamInfo info;
    if (!Streams::is_special(stream) && this_session().streams.find(stream, info)) {
        info.priority = priority;
        this_session().streams.add(stream, info);
    }
}

// On a capturing stream the call fails and invalidates the capture.
CUresult check_not_capturing(CUstream stream) {
    const CUresult result = check_stream(stream);
    Captures& captures = this_session().captures;
    return result != CUDA_SUCCESS || !captures.any() ? result : captures.refuse_if_capturing(stream_key(stream));
}

// The same for a query or a wait, which the legacy stream also refuses beside a blocking stream that captures.
CUresult check_may_wait(CUstream stream) {
    StreamInfo info;
    const CUresult result = find_stream(stream, info);
    Captures& captures = this_session().captures;
    if (result != CUDA_SUCCESS || !captures.any()) {
        return result;
    }
    const StreamKey key = stream_key(stream);
    return is_legacy(key) ? captures.before_work(key, info.context) : captures.refuse_if_capturing(key);
}

int clamped_priority(int priority, const ContextState& context) {
    const Device& device = this_session().devices.devices[static_cast<std::size_t>(context.device)];
    return std::max(device.greatest_priority, std::min(device.least_priority, priority));
}

// Asks the server for room for one stream more, if the context never had so many. Their creation is sent without
// waiting for the result, and a program must learn at once that its quota does not allow it.
CUresult reserve_stream(const ContextState& context, ContextState& owner) {
    constexpr std::size_t kAlwaysThere = 32;
    const std::size_t count = owner.streams.load(std::memory_order_relaxed) + 1;
    if (count <= std::max(kAlwaysThere, owner.streams_reserved.load(std::memory_order_relaxed)) ||
        !this_session().agreement.has(calls::gpStreamReserve::kOpcode)) {
        return CUDA_SUCCESS;
    }
    const CUresult result = remote<calls::gpStreamReserve>(context.handle);
    if (result == CUDA_SUCCESS) {
        owner.streams_reserved.store(count, std::memory_order_relaxed);
    }
    return result;
}

template <class Create>
CUresult create_stream(CUstream* phStream, unsigned flags, int priority, Create create) {
    ContextState* context = nullptr;
    CUresult result = usable_context(context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (phStream == nullptr || (flags & ~static_cast<unsigned>(CU_STREAM_NON_BLOCKING)) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if ((flags & CU_STREAM_NON_BLOCKING) != 0) {
        context->unordered_streams = true;
    }
    if (result = reserve_stream(*context, context->owner()); result != CUDA_SUCCESS) {
        return result;
    }
    CUstream stream = nullptr;
    result = create(&stream);
    if (result == CUDA_SUCCESS) {
        ++context->owner().streams;
        this_session().streams.add(stream, {flags, priority, context});
        *phStream = stream;
    }
    return result;
}

CUresult destroy_stream(CUstream stream) {
    if (Streams::is_special(stream)) {
        return stream == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_NOT_PERMITTED;
    }
    Session& s = this_session();
    StreamInfo info;
    const bool known = s.streams.find(stream, info);
    if (known && info.ended()) {
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    }
    if (!known || !s.streams.remove(stream)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (std::atomic<std::size_t>& count = info.context->owner().streams; count != 0) {
        --count;
    }
    s.stream_watches.forget(stream_key(stream));
    if (s.captures.any()) {
        s.captures.destroyed(stream_key(stream));
    }
    return remote<calls::cuStreamDestroy_v2>(stream);
}

CUresult submit_host_function(CUstream stream, HostFunctions::Function function) {
    ContextState* context = nullptr;
    CUresult result = usable_context(context);
    if (result == CUDA_SUCCESS) {
        result = check_stream(stream);
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    Session& s = this_session();
    const std::uint64_t ticket = s.host_functions.submit(std::move(function));
    result = remote<calls::gpHostFunction>(ticket, stream);
    if (result != CUDA_SUCCESS) {
        s.host_functions.cancel(ticket);
    }
    return result;
}

}  // namespace

CUresult cuStreamCreate(CUstream* phStream, unsigned Flags) {
    return create_stream(phStream, Flags, 0,
                         [&](CUstream* stream) { return remote<calls::cuStreamCreate>(stream, Flags); });
}

CUresult cuStreamCreateWithPriority(CUstream* phStream, unsigned flags, int priority) {
    ContextState* context = nullptr;
    CUresult result = usable_context(context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    priority = clamped_priority(priority, *context);
    return create_stream(phStream, flags, priority, [&](CUstream* stream) {
        return remote<calls::cuStreamCreateWithPriority>(stream, flags, priority);
    });
}

CUresult cuStreamDestroy(CUstream hStream) {
    return destroy_stream(hStream);
}
CUresult cuStreamDestroy_v2(CUstream hStream) {
    return destroy_stream(hStream);
}

void note_complete(CUstream stream) {
    const ThreadState& thread = this_thread();
    ContextState* const context = thread.current();
    const bool legacy = stream == CU_STREAM_LEGACY || (stream == nullptr && !thread.per_thread_default);
    if (legacy && context != nullptr && !context->unordered_streams.load(std::memory_order_relaxed)) {
        this_session().note_complete(*context);  // the legacy stream is ordered behind all others
    } else {
        this_session().note_complete(stream_key(stream));
    }
}

namespace {

// Is the stream known to be complete? True if it, or its whole context, was waited for and no command was sent since.
bool known_complete(const Session& s, CUstream stream, const ContextState*& context) {
    StreamInfo info;
    if (find_stream(stream, info) != CUDA_SUCCESS) {
        return false;
    }
    context = info.context;
    const ThreadState::Waited& waited = this_thread().last_waited;
    return (context != nullptr && s.nothing_since_wait(*context)) ||
           (waited.command == s.commands_sent() && waited.stream == stream_key(stream));
}

}  // namespace

CUresult synchronize_stream(CUstream stream) {
    Session& s = this_session();
    ThreadState& thread = this_thread();
    const ContextState* context = nullptr;
    if (known_complete(s, stream, context)) {
        return known_answer(s, context);
    }
    const CUresult result = remote<calls::cuStreamSynchronize>(stream);
    if (result == CUDA_SUCCESS) {
        note_complete(stream);
        thread.last_waited = {stream_key(stream), thread.last_command};
    }
    return result;
}

CUresult cuStreamSynchronize(CUstream hStream) {
    const CUresult result = check_may_wait(hStream);
    return result != CUDA_SUCCESS ? result : synchronize_stream(hStream);
}

namespace {

CUresult ask_and_watch(CUstream stream, const StreamKey& key) {
    Session& s = this_session();
    // including the reply, if no other record arrives before it
    const std::uint64_t received = s.records_received() + 1;
    const CUresult result = remote<calls::cuStreamQuery>(stream);
    if ((result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY) &&
        s.stream_watches.answered(key, result == CUDA_SUCCESS, received) &&
        remote<calls::gpStreamWatch>(stream) != CUDA_SUCCESS) {
        s.stream_watches.forget(key);
    }
    return result;
}

}  // namespace

CUresult cuStreamQuery(CUstream hStream) {
    const CUresult result = check_may_wait(hStream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    Session& s = this_session();
    const ContextState* context = nullptr;
    if (known_complete(s, hStream, context)) {
        return known_answer(s, context);
    }
    const StreamKey stream = stream_key(hStream);
    switch (s.stream_watches.known(stream, s.commands_sent(), s.records_received())) {
        case StreamWatches::Known::complete: return known_answer(s, context);
        case StreamWatches::Known::pending: return pending_answer(s, context);
        case StreamWatches::Known::unknown: return ask_and_watch(hStream, stream);
    }
    return CUDA_ERROR_UNKNOWN;
}

CUresult cuStreamGetFlags(CUstream hStream, unsigned* flags) {
    StreamInfo info;
    CUresult result = check_not_capturing(hStream);
    if (result == CUDA_SUCCESS) {
        result = find_stream(hStream, info);
    }
    return result == CUDA_SUCCESS ? store(flags, info.flags) : result;
}

CUresult cuStreamGetPriority(CUstream hStream, int* priority) {
    StreamInfo info;
    const CUresult result = find_stream(hStream, info);
    return result == CUDA_SUCCESS ? store(priority, info.priority) : result;
}

CUresult cuStreamGetId(CUstream hStream, unsigned long long* streamId) {
    StreamInfo info;
    const CUresult result = find_stream(hStream, info);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (streamId == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const std::uint64_t value = codec::to_wire(hStream);
    const bool own = value == 2 || (value == 0 && this_thread().per_thread_default);
    // Unique per stream: the legacy stream differs by context, a per-thread stream by context and thread.
    *streamId =
        value > 2 ? value : (info.context->id << 32) + (own ? 2 + (std::uint64_t{this_thread().index} << 2) : 1);
    return CUDA_SUCCESS;
}

CUresult cuStreamGetDevice(CUstream hStream, CUdevice* device) {
    StreamInfo info;
    const CUresult result = find_stream(hStream, info);
    return result == CUDA_SUCCESS ? store(device, info.context->device) : result;
}

CUresult cuStreamGetCtx(CUstream hStream, CUcontext* pctx) {
    StreamInfo info;
    const CUresult result = find_stream(hStream, info);
    return result == CUDA_SUCCESS ? store(pctx, info.context->handle) : result;
}

namespace {

CUgreenCtx green_of(const StreamInfo& info) {
    return info.context->green() ? codec::from_wire<CUgreenCtx>(codec::to_wire(info.context->handle)) : nullptr;
}

}  // namespace

// Unlike the first form, it separates the context from the green context.
CUresult cuStreamGetCtx_v2(CUstream hStream, CUcontext* pCtx, CUgreenCtx* pGreenCtx) {
    StreamInfo info;
    if (const CUresult result = find_stream(hStream, info); result != CUDA_SUCCESS) {
        return result;
    }
    if (pCtx == nullptr && pGreenCtx == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (pCtx != nullptr) {
        *pCtx = info.context->owner().handle;
    }
    if (pGreenCtx != nullptr) {
        *pGreenCtx = green_of(info);
    }
    return CUDA_SUCCESS;
}

CUresult cuStreamGetGreenCtx(CUstream hStream, CUgreenCtx* phCtx) {
    StreamInfo info;
    const CUresult result = find_stream(hStream, info);
    return result == CUDA_SUCCESS ? store(phCtx, green_of(info)) : result;
}

CUresult cuGreenCtxStreamCreate(CUstream* phStream, CUgreenCtx greenCtx, unsigned flags, int priority) {
    ContextState* context = nullptr;
    if (const CUresult result = find_context(greenCtx, context); result != CUDA_SUCCESS) {
        return result;
    }
    if (phStream == nullptr || flags != CU_STREAM_NON_BLOCKING) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    priority = clamped_priority(priority, *context);
    CUstream stream = nullptr;
    CUresult result = reserve_stream(*context, context->owner());
    if (result == CUDA_SUCCESS) {
        result = remote<calls::gpGreenStreamCreate>(&stream, context->handle, priority);
    }
    if (result == CUDA_SUCCESS) {
        ++context->owner().streams;
        this_session().streams.add(stream, {flags, priority, context});
        *phStream = stream;
    }
    return result;
}

CUresult cuLaunchHostFunc(CUstream hStream, CUhostFn fn, void* userData) {
    if (fn == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (Session& s = this_session(); s.captures.find(stream_key(hStream))) {
        const std::uint64_t name = s.graph_hosts.name_function({fn, userData});
        return name == 0 ? CUDA_ERROR_OUT_OF_MEMORY : remote<calls::gpCaptureHostFunction>(name, hStream);
    }
    return submit_host_function(hStream, [fn, userData](CUresult status) {
        if (status == CUDA_SUCCESS) {
            fn(userData);
        }
    });
}

CUresult cuStreamAddCallback(CUstream hStream, CUstreamCallback callback, void* userData, unsigned flags) {
    if (callback == nullptr || flags != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (const CUresult result = check_not_capturing(hStream); result != CUDA_SUCCESS) {
        return result;
    }
    return submit_host_function(
        hStream, [hStream, callback, userData](CUresult status) { callback(hStream, status, userData); });
}

CUresult cuStreamCopyAttributes(CUstream dst, CUstream src) {
    CUresult result = check_stream(dst);
    if (result == CUDA_SUCCESS) {
        result = check_stream(src);
    }
    result = result != CUDA_SUCCESS ? result : remote<calls::cuStreamCopyAttributes>(dst, src);
    StreamInfo from;
    if (result == CUDA_SUCCESS && find_stream(src, from) == CUDA_SUCCESS) {
        note_priority(dst, from.priority);
    }
    return result;
}

CUresult cuStreamSetAttribute(CUstream hStream, CUstreamAttrID attr, const CUstreamAttrValue* value) {
    CUresult result = check_stream(hStream);
    if (result != CUDA_SUCCESS || value == nullptr) {
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
    }
    result = remote<calls::cuStreamSetAttribute>(hStream, attr, value);
    CUstreamAttrValue now;
    if (attr == CU_STREAM_ATTRIBUTE_PRIORITY && result == CUDA_SUCCESS &&
        remote<calls::cuStreamGetAttribute>(hStream, attr, &now) == CUDA_SUCCESS) {
        note_priority(hStream, now.priority);  // the driver may have clamped it
    }
    return result;
}

// ---- memory operations

namespace {

template <class Call>
inline constexpr bool is_first_form =
    std::is_same_v<Call, calls::cuStreamBatchMemOp> || std::is_same_v<Call, calls::cuStreamWaitValue32> ||
    std::is_same_v<Call, calls::cuStreamWaitValue64> || std::is_same_v<Call, calls::cuStreamWriteValue32> ||
    std::is_same_v<Call, calls::cuStreamWriteValue64>;

// Does the device of the current context have the operations in that form? The first one exists only on a server whose
// administrator asked for it.
template <class Call>
bool has_form() {
    const ContextState* const context = this_thread().current();
    if (!is_first_form<Call> || context == nullptr) {
        return true;
    }
    int value = 0;
    this_session().devices.devices[static_cast<std::size_t>(context->device)].attributes.get(
        CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1, &value);
    return value != 0;
}

constexpr unsigned kComparisons =
    CU_STREAM_WAIT_VALUE_GEQ | CU_STREAM_WAIT_VALUE_EQ | CU_STREAM_WAIT_VALUE_AND | CU_STREAM_WAIT_VALUE_NOR;

// Will the driver surely accept an operation on a word of this size?
bool is_usual(const Session& s, CUdeviceptr address, std::size_t bytes, unsigned flags, unsigned usual_flags) {
    return address % bytes == 0 && (flags & ~usual_flags) == 0 && surely_holds(s, address, bytes);
}

bool is_usual(const Session& s, const CUstreamBatchMemOpParams& each) {
    switch (each.operation) {
        case CU_STREAM_MEM_OP_WAIT_VALUE_32:
            return is_usual(s, each.waitValue.address, 4, each.waitValue.flags, kComparisons);
        case CU_STREAM_MEM_OP_WAIT_VALUE_64:
            return is_usual(s, each.waitValue.address, 8, each.waitValue.flags, kComparisons);
        case CU_STREAM_MEM_OP_WRITE_VALUE_32:
            return is_usual(s, each.writeValue.address, 4, each.writeValue.flags,
                            CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER);
        case CU_STREAM_MEM_OP_WRITE_VALUE_64:
            return is_usual(s, each.writeValue.address, 8, each.writeValue.flags,
                            CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER);
        default: return false;
    }
}

template <class Call>
CUresult operate(CUstream stream, unsigned int count, CUstreamBatchMemOpParams* operations, unsigned int flags) {
    if (count > kMaxOperations) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!has_form<Call>()) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    if (operations == nullptr && count != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    Session& s = this_session();
    give_to_gpu(s, operations, count);
    const bool surely_taken =
        flags == 0 && std::all_of(operations, operations + count, [&](const auto& each) { return is_usual(s, each); });
    return remote_or_ask<Call>(surely_taken, stream, count, operations, flags);
}

template <class Call, class Value>
CUresult operate_on(CUstream stream, CUdeviceptr address, Value value, unsigned int flags, unsigned int usual_flags) {
    CUresult result = CUDA_SUCCESS;
    Session* const s = session(result);
    if (s == nullptr) {
        return result;
    }
    if (!has_form<Call>()) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    give_to_gpu(*s, value);  // it may be an address
    return remote_or_ask<Call>(is_usual(*s, address, sizeof(Value), flags, usual_flags), stream, address, value, flags);
}

}  // namespace

CUresult cuStreamBatchMemOp(CUstream stream, unsigned int count, CUstreamBatchMemOpParams* paramArray,
                            unsigned int flags) {
    return operate<calls::cuStreamBatchMemOp>(stream, count, paramArray, flags);
}
CUresult cuStreamBatchMemOp_v2(CUstream stream, unsigned int count, CUstreamBatchMemOpParams* paramArray,
                               unsigned int flags) {
    return operate<calls::cuStreamBatchMemOp_v2>(stream, count, paramArray, flags);
}
CUresult cuStreamWaitValue32(CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int flags) {
    return operate_on<calls::cuStreamWaitValue32>(stream, addr, value, flags, kComparisons);
}
CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int flags) {
    return operate_on<calls::cuStreamWaitValue32_v2>(stream, addr, value, flags, kComparisons);
}
CUresult cuStreamWaitValue64(CUstream stream, CUdeviceptr addr, cuuint64_t value, unsigned int flags) {
    return operate_on<calls::cuStreamWaitValue64>(stream, addr, value, flags, kComparisons);
}
CUresult cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr addr, cuuint64_t value, unsigned int flags) {
    return operate_on<calls::cuStreamWaitValue64_v2>(stream, addr, value, flags, kComparisons);
}
CUresult cuStreamWriteValue32(CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int flags) {
    return operate_on<calls::cuStreamWriteValue32>(stream, addr, value, flags, CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER);
}
CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int flags) {
    return operate_on<calls::cuStreamWriteValue32_v2>(stream, addr, value, flags,
                                                      CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER);
}
CUresult cuStreamWriteValue64(CUstream stream, CUdeviceptr addr, cuuint64_t value, unsigned int flags) {
    return operate_on<calls::cuStreamWriteValue64>(stream, addr, value, flags, CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER);
}
CUresult cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr addr, cuuint64_t value, unsigned int flags) {
    return operate_on<calls::cuStreamWriteValue64_v2>(stream, addr, value, flags,
                                                      CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER);
}

}  // namespace gpupool::client::entry
