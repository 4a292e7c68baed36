// Events of streams and of whole contexts. The client chooses their handles and the server creates them, so the calls
// need not wait.

#include "client/calls/contexts.h"
#include "client/calls/handlers.h"
#include "client/calls/streams.h"
#include "client/core/dispatch/remote.h"

namespace gpupool::client::entry {
namespace {

CUresult check_event(CUevent event) {
    return this_session().events.find(event) != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

// A lost context answers every query with its error.
CUresult check_not_lost() {
    const ContextState* const context = this_thread().current();
    return context == nullptr ? CUDA_SUCCESS : context->lost.load(std::memory_order_relaxed);
}

// An event that a capture recorded stands for graph nodes, not for work that a call could wait for.
CUresult check_not_captured(CUevent event) {
    CUresult result = check_event(event);
    Captures& captures = this_session().captures;
    if (result == CUDA_SUCCESS) {
        result = captures.refuse_if_captured(event);
    }
    return result != CUDA_SUCCESS || !captures.any() ? result : captures.before_unsafe_call();
}

CUresult check_event_query(CUevent event) {
    const CUresult result = check_not_lost();
    return result != CUDA_SUCCESS ? result : check_not_captured(event);
}

// Makes the worker report the completion of that record, with `send`, so that queries of it need no round trip.
template <class Send>
CUresult watch(Event& event, std::uint64_t record, Send send) {
    event.watched.store(record, std::memory_order_release);  // set first: the notice may arrive before the call returns
    const CUresult result = send();
    if (result != CUDA_SUCCESS) {
        event.watched.store(0, std::memory_order_release);
    }
    return result;
}

// Sends a record of the event. It is counted first, so that no thread takes the completion of an earlier record for
// this one's.
template <class Send>
CUresult send_record(Event& event, Send send) {
    event.launched_with = false;
    const std::uint64_t number = event.record.fetch_add(1, std::memory_order_acq_rel) + 1;
    const CUresult result = send(number);
    if (result == CUDA_SUCCESS) {
        event.sent.store(number, std::memory_order_release);
    }
    return result;
}

template <class Send>
CUresult record(CUevent handle, CUstream stream, unsigned flags, Send send) {
    StreamInfo info;
    CUresult result = find_stream(stream, info);
    const std::shared_ptr<Event> event = this_session().events.find(handle);
    if (result != CUDA_SUCCESS || event == nullptr) {
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_HANDLE;
    }
    const bool external = (flags & CU_EVENT_RECORD_EXTERNAL) != 0;
    if ((flags & ~static_cast<unsigned>(CU_EVENT_RECORD_EXTERNAL)) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (external) {
        if (!this_session().captures.find(stream_key(stream))) {
            return CUDA_ERROR_ILLEGAL_STATE;
        }
        event->always_ask = true;  // in a capture it becomes a graph node
    }
    Captures& captures = this_session().captures;
    const bool watched = flags == CU_EVENT_RECORD_DEFAULT && event->queried.load(std::memory_order_relaxed) &&
                         !event->always_ask.load(std::memory_order_relaxed) && !captures.any();
    result = send_record(*event, [&](std::uint64_t number) {
        return watched ? watch(*event, number, [&] { return remote<calls::gpEventRecord>(handle, stream, number); })
                       : send();
    });
    if (result == CUDA_SUCCESS && !external && (captures.any() || captures.any_events())) {
        captures.recorded(handle, stream_key(stream));
    }
    return result;
}

// Checks a call that concerns all work of a context, or of a green context. It is not allowed while one of the
// context's streams captures.
template <class Handle>
CUresult check_context_event(Handle context, CUevent event, ContextState*& found) {
    CUresult result = find_context(context, found);
    if (result == CUDA_SUCCESS) {
        result = check_event(event);
    }
    Captures& captures = this_session().captures;
    return result != CUDA_SUCCESS || !captures.any() ? result : captures.before_context_wait(found);
}

template <class Handle>
CUresult record_in_context(Handle context, CUevent event) {
    ContextState* found = nullptr;
    CUresult result = check_context_event(context, event, found);
    const std::shared_ptr<Event> known = this_session().events.find(event);
    if (result != CUDA_SUCCESS || known == nullptr) {
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_HANDLE;
    }
    result =
        send_record(*known, [&](std::uint64_t) { return remote<calls::gpContextRecordEvent>(found->handle, event); });
    if (result == CUDA_SUCCESS) {
        this_session().captures.forget(event);
    }
    return result;
}

template <class Handle>
CUresult wait_in_context(Handle context, CUevent event) {
    ContextState* found = nullptr;
    CUresult result = check_context_event(context, event, found);
    if (result == CUDA_SUCCESS) {
        result = this_session().captures.refuse_if_captured(event);
    }
    return result != CUDA_SUCCESS ? result : remote<calls::gpContextWaitEvent>(found->handle, event);
}

CUresult destroy_event(CUevent event) {
    if (!this_session().events.remove(event)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    this_session().captures.forget(event);
    return remote<calls::cuEventDestroy_v2>(event);
}

}  // namespace

CUresult cuEventCreate(CUevent* phEvent, unsigned Flags) {
    constexpr unsigned kKnown = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
    ContextState* context = nullptr;
    CUresult result = usable_context(context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (phEvent == nullptr || (Flags & ~kKnown) != 0 ||
        ((Flags & CU_EVENT_INTERPROCESS) != 0 && (Flags & CU_EVENT_DISABLE_TIMING) == 0)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUevent event = nullptr;
    result = remote<calls::cuEventCreate>(&event, Flags);
    if (result == CUDA_SUCCESS) {
        this_session().events.add(event, Flags);
        *phEvent = event;
    }
    return result;
}

CUresult cuEventDestroy(CUevent hEvent) {
    return destroy_event(hEvent);
}
CUresult cuEventDestroy_v2(CUevent hEvent) {
    return destroy_event(hEvent);
}

CUresult cuEventRecord(CUevent hEvent, CUstream hStream) {
    return record(hEvent, hStream, 0, [&] { return remote<calls::cuEventRecord>(hEvent, hStream); });
}

CUresult cuEventRecordWithFlags(CUevent hEvent, CUstream hStream, unsigned flags) {
    return record(hEvent, hStream, flags,
                  [&] { return remote<calls::cuEventRecordWithFlags>(hEvent, hStream, flags); });
}

CUresult cuEventQuery(CUevent hEvent) {
    CUresult result = check_event_query(hEvent);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    const std::shared_ptr<Event> event = this_session().events.find(hEvent);
    if (event == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    switch (event->known()) {
        case Event::Known::complete: return known_answer(this_session(), nullptr);
        case Event::Known::pending: return pending_answer(this_session(), nullptr);
        case Event::Known::unknown: break;
    }
    const std::uint64_t latest = event->sent.load(std::memory_order_acquire);
    result = remote<calls::cuEventQuery>(hEvent);
    if (result == CUDA_SUCCESS) {
        this_session().events.note_complete(hEvent, latest, result);
    } else if (result == CUDA_ERROR_NOT_READY && !event->always_ask.load(std::memory_order_relaxed)) {
        watch(*event, latest, [&] { return remote<calls::gpEventWatch>(hEvent, latest); });
    }
    event->queried = true;
    return result;
}

CUresult cuEventSynchronize(CUevent hEvent) {
    CUresult result = check_event_query(hEvent);
    const std::shared_ptr<Event> event = this_session().events.find(hEvent);
    if (result != CUDA_SUCCESS || event == nullptr) {
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_HANDLE;
    }
    if (event->known() == Event::Known::complete) {
        return known_answer(this_session(), nullptr);
    }
    const std::uint64_t latest = event->sent.load(std::memory_order_acquire);
    result = remote<calls::cuEventSynchronize>(hEvent);
    if (result == CUDA_SUCCESS) {
        this_session().events.note_complete(hEvent, latest, result);
    }
    return result;
}

CUresult cuStreamWaitEvent(CUstream hStream, CUevent hEvent, unsigned Flags) {
    StreamInfo info;
    CUresult result = find_stream(hStream, info);
    if (result == CUDA_SUCCESS) {
        result = check_event(hEvent);
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    Captures& captures = this_session().captures;
    const bool external = (Flags & CU_EVENT_WAIT_EXTERNAL) != 0;
    if ((Flags & ~static_cast<unsigned>(CU_EVENT_WAIT_EXTERNAL)) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const StreamKey key = stream_key(hStream);
    const std::optional<Captures::Status> capturing = captures.find(key);
    if (external && !capturing) {
        return captures.capture_of(hEvent) ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_ILLEGAL_STATE;
    }
    if (capturing && capturing->invalid) {
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    if (const auto capture = external ? std::nullopt : captures.capture_of(hEvent)) {
        // It may join the capture, merge two, or be too late: only the driver knows.
        const WaitForReplies exact;
        result = remote<calls::cuStreamWaitEvent>(hStream, hEvent, Flags);
        if (result == CUDA_SUCCESS) {
            captures.join(key, info.blocking(), *capture);
        } else {
            captures.invalidate(key);
            captures.invalidate(*capture);
        }
        return result;
    }
    if (capturing && !external) {
        const std::shared_ptr<Event> event = this_session().events.find(hEvent);
        if (event != nullptr && event->was_recorded()) {
            captures.invalidate(key);
            return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
        }
    }
    return remote<calls::cuStreamWaitEvent>(hStream, hEvent, Flags);
}

CUresult cuCtxRecordEvent(CUcontext hCtx, CUevent hEvent) {
    return record_in_context(hCtx, hEvent);
}
CUresult cuGreenCtxRecordEvent(CUgreenCtx hCtx, CUevent hEvent) {
    return record_in_context(hCtx, hEvent);
}
CUresult cuCtxWaitEvent(CUcontext hCtx, CUevent hEvent) {
    return wait_in_context(hCtx, hEvent);
}
CUresult cuGreenCtxWaitEvent(CUgreenCtx hCtx, CUevent hEvent) {
    return wait_in_context(hCtx, hEvent);
}

CUresult cuEventElapsedTime(float* pMilliseconds, CUevent hStart, CUevent hEnd) {
    return remote<calls::cuEventElapsedTime>(pMilliseconds, hStart, hEnd);
}

CUresult cuEventElapsedTime_v2(float* pMilliseconds, CUevent hStart, CUevent hEnd) {
    return remote<calls::cuEventElapsedTime_v2>(pMilliseconds, hStart, hEnd);
}

}  // namespace gpupool::client::entry
