// Streams: created at once, since that never blocks; destroyed in stream order.

#include <algorithm>
#include <chrono>

#include "common/clock.h"
#include "server/worker/handlers/handlers.h"
#include "server/worker/scheduling/capture.h"
#include "server/worker/scheduling/stream_watches.h"

namespace gpupool::worker::handlers {
namespace {

// The dispatcher releases a destroyed stream when it finds its work complete, and polls for that between batches of
// commands. A batch may destroy thousands of streams, so create() polls after this many as well.
constexpr std::size_t kDestroyedPerPoll = 256;
// If there are too many streams, create() waits as long as the GPU makes progress within this time, but never for
// something that the client may have to bring about.
constexpr std::chrono::milliseconds kProgressTimeout{200};

bool make_room(StreamView& session) {
    if (session.objects.streams_destroyed >= kDestroyedPerPoll) {
        session.objects.streams_destroyed = 0;
        session.commands.catch_up();
    }
    if (session.objects.stream_fits()) {
        return true;
    }
    std::size_t count = session.objects.stream_count();
    for (auto last = session.clock.now();
         session.objects.ending_stream_count() != 0 && session.clock.now() - last < kProgressTimeout;) {
        session.commands.catch_up();
        if (session.objects.stream_fits()) {
            return true;
        }
        if (const std::size_t now = session.objects.stream_count(); now < count) {
            last = session.clock.now();
            count = now;
        }
        session.clock.sleep_for(std::chrono::microseconds(100));
    }
    return false;
}

// Must memory be charged for one stream more?
bool takes_memory(const SessionView& session, const ContextState& context) {
    return session.memory.driver.needed_for_streams(context, context.stream_count() + 1) != 0;
}

// Makes room for one stream more in the context that `find` returns, and returns it; null if there is none. Streams
// that the program has destroyed may still be there. Contexts may end meanwhile. `has_room`: may the session have one
// more?
template <class Find>
ContextState* make_room_in(StreamView& session, Find find, bool& has_room) {
    has_room = make_room(session);
    ContextState* const context = find();
    if (context == nullptr || !takes_memory(session, *context)) {
        return context;
    }
    session.commands.catch_up();
    return find();
}

template <class Call>
Outcome create(StreamView& session, Command& command, codec::Slots<Call>& slots, unsigned flags, int priority) {
    const auto client = codec::from_wire<CUstream>(slots.template at<Call::phStream>().minted);
    bool has_room = false;
    ContextState* const context = make_room_in(
        session, [&] { return session.context_of(command); }, has_room);
    if (context == nullptr) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (codec::kind_of(codec::to_wire(client)) != codec::HandleKind::stream || context->streams.contains(client)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!has_room || !session.memory.charge_streams(session.api, *context, context->stream_count() + 1)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    session.scheduler.enter(context);
    auto stream = std::make_unique<StreamState>();
    const CUresult result = driver::call(session.api.cuStreamCreateWithPriority, &stream->driver, flags, priority);
    if (result == CUDA_SUCCESS) {
        stream->client = client;
        stream->context = context;
        stream->blocking = (flags & CU_STREAM_NON_BLOCKING) == 0 && context->green == nullptr;
        slots.template at<Call::phStream>().object = stream->driver;
        context->streams[client] = std::move(stream);
    }
    return result;
}

// Destroys the stream, unless it has ended together with its context.
void end_stream(SessionView& session, CUstream client, CUcontext context) {
    ContextState* const state = session.objects.context(context);
    if (state == nullptr) {
        return;
    }
    const auto it = state->streams.find(client);
    if (it == state->streams.end()) {
        return;
    }
    StreamState& stream = *it->second;
    session.scheduler.enter(state);
    stream.gone = true;
    driver::call(session.api.cuStreamDestroy_v2, stream.driver);
    keep_first_error(state->latched_by_ended, stream.take_latched());
    session.tracer.forget(stream);
    session.gate.forget(stream, state->lost);  // the end of a dead context's stream does not mean that its work is done
    const bool ends_capture = stream.began_capture;
    state->streams.erase(it);
    ends_capture ? note_end_of_capture(session) : note_captures(session);
}

template <class Call>
Outcome destroy(SessionView& session, Command& command, codec::Slots<Call>& slots) {
    CUresult result = CUDA_SUCCESS;
    const CUstream client = slots.template at<Call::hStream>().value;
    StreamState* stream = session.stream_of(command, client, result);
    if (stream == nullptr) {
        return result;
    }
    if (stream->client == nullptr || stream->client == CU_STREAM_PER_THREAD) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    session.objects.streams_destroyed += std::exchange(stream->ending, true) ? 0 : 1;
    if (!stream->queue.empty() && !command.ready) {
        session.gate.queue(*stream, std::make_unique<QueuedCommand>(session, command));
        return Outcome::answered();
    }
    session.scheduler.enter(stream->context);
    if (stream->began_capture) {
        discard_capture(session, *stream);
    }
    // Deferred, because the action may run while the scheduler iterates over this very stream.
    const auto end = [&session, client, context = stream->context->client](CUresult) {
        session.gate.when_open([&session, client, context] { end_stream(session, client, context); });
    };
    // Completions that are yet to be polled refer to the stream: it is destroyed when they are found.
    if (stream->capturing) {
        session.scheduler.when_complete_before_capture(*stream, end);
    } else {
        session.scheduler.at_mark(*stream, end);
    }
    return CUDA_SUCCESS;
}

}  // namespace

// The stream itself is created by a call that the client does not wait for.
Outcome gpStreamReserve(StreamView& session, Command&, codec::Slots<calls::gpStreamReserve>& slots) {
    const CUcontext client = slots.at<calls::gpStreamReserve::context>().value;
    bool has_room = false;
    const ContextState* const context = make_room_in(
        session, [&] { return session.objects.context(client); }, has_room);
    if (context == nullptr) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    return has_room && session.memory.charge_streams(session.api, *context, context->stream_count() + 1)
               ? CUDA_SUCCESS
               : CUDA_ERROR_OUT_OF_MEMORY;
}

Outcome cuStreamCreate(StreamView& session, Command& command, codec::Slots<calls::cuStreamCreate>& slots) {
    return create(session, command, slots, slots.at<calls::cuStreamCreate::Flags>().value, 0);
}

Outcome cuStreamCreateWithPriority(StreamView& session, Command& command,
                                   codec::Slots<calls::cuStreamCreateWithPriority>& slots) {
    using Call = calls::cuStreamCreateWithPriority;
    return create(session, command, slots, slots.at<Call::flags>().value, slots.at<Call::priority>().value);
}

Outcome gpGreenStreamCreate(StreamView& session, Command&, codec::Slots<calls::gpGreenStreamCreate>& slots) {
    using Call = calls::gpGreenStreamCreate;
    const auto client = codec::from_wire<CUstream>(slots.at<Call::stream>().minted);
    bool has_room = false;
    ContextState* const context = make_room_in(
        session, [&] { return session.objects.context(slots.at<Call::context>().value); }, has_room);
    if (context == nullptr || context->green == nullptr || context->ending) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (codec::kind_of(codec::to_wire(client)) != codec::HandleKind::stream || context->streams.contains(client)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!has_room || !session.memory.charge_streams(session.api, *context, context->stream_count() + 1)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    auto stream = std::make_unique<StreamState>();
    const CUresult result =
        driver::call(session.api.cuGreenCtxStreamCreate, &stream->driver, context->green,
                     static_cast<unsigned>(CU_STREAM_NON_BLOCKING), slots.at<Call::priority>().value);
    if (result == CUDA_SUCCESS) {
        stream->client = client;
        stream->context = context;
        stream->blocking = false;
        slots.at<Call::stream>().object = stream->driver;
        context->streams[client] = std::move(stream);
    }
    return result;
}

Outcome cuStreamDestroy(SessionView& session, Command& command, codec::Slots<calls::cuStreamDestroy>& slots) {
    return destroy(session, command, slots);
}

Outcome cuStreamDestroy_v2(SessionView& session, Command& command, codec::Slots<calls::cuStreamDestroy_v2>& slots) {
    return destroy(session, command, slots);
}

Outcome cuStreamQuery(SessionView& session, Command& command, codec::Slots<calls::cuStreamQuery>& slots) {
    CUresult result = CUDA_SUCCESS;
    StreamState* stream = session.stream_of(command, slots.at<calls::cuStreamQuery::hStream>().value, result);
    if (stream == nullptr) {
        return result;
    }
    result = session.scheduler.query(*stream);
    if (result == CUDA_SUCCESS) {
        session.scheduler.flush_completions();
    }
    return result;
}

Outcome gpStreamWatch(StreamView& session, Command& command, codec::Slots<calls::gpStreamWatch>& slots) {
    CUresult result = CUDA_SUCCESS;
    const CUstream handle = slots.at<calls::gpStreamWatch::stream>().value;
    const std::uint64_t number = command.header.number;
    if (const StreamState* const stream = session.stream_of(command, handle, result)) {
        session.watches.add(stream->name(), number);
    } else {
        session.watches.notify(
            {codec::from_wire<CUcontext>(command.header.context), command.meant(handle), command.header.thread}, number,
            result);
    }
    return CUDA_SUCCESS;
}

Outcome cuStreamSynchronize(SessionView& session, Command& command, codec::Slots<calls::cuStreamSynchronize>& slots) {
    CUresult result = CUDA_SUCCESS;
    StreamState* stream = session.stream_of(command, slots.at<calls::cuStreamSynchronize::hStream>().value, result);
    if (stream == nullptr) {
        return result;
    }
    auto answer = [&session, command](CUresult verdict) { session.answers.give(command, verdict, true); };
    if (stream->legacy) {
        // The legacy stream waits for all blocking streams, so this call does too.
        session.gate.when_blocking_complete(*stream->context, std::move(answer));
    } else {
        session.gate.when_complete(*stream, std::move(answer));
    }
    return Outcome::answered();
}

Outcome cuStreamWaitEvent(SessionView& session, Command& command, codec::Slots<calls::cuStreamWaitEvent>& slots) {
    using Call = calls::cuStreamWaitEvent;
    CUresult result = CUDA_SUCCESS;
    StreamState* stream = session.stream_of(command, slots.at<Call::hStream>().value, result);
    if (stream == nullptr) {
        return result;
    }
    std::shared_ptr<EventState> event;
    if (command.ready) {
        event = command.events.front();
    } else if (const auto known = session.objects.events.find(slots.at<Call::hEvent>().value);
               known != session.objects.events.end()) {
        event = known->second;
    } else {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    const unsigned flags = slots.at<Call::Flags>().value;
    std::optional<Submission> submission = enter_event<Call>(session, command, *stream, event, &Entry::names);
    if (!submission) {
        return Outcome::answered();
    }
    session.scheduler.enter(stream->context);
    if (session.objects.captures != 0 && !stream->capturing && stream->unmarked != 0) {
        session.scheduler.mark(*stream, {});  // it may be about to join a capture, after which no mark may enter it
    }
    event->in_graph = event->in_graph || (stream->capturing && (flags & CU_EVENT_WAIT_EXTERNAL) != 0);
    result = driver::call(*submission, session.api.cuStreamWaitEvent, stream->driver, event->driver, flags);
    if (event->latched != CUDA_SUCCESS) [[unlikely]] {
        const StreamState* const source = session.objects.stream(event->recorded_in);
        if (source == nullptr || source->latched != CUDA_SUCCESS) {  // else a call has reported the error
            stream->latch(event->latched);
        }
    }
    submission->end();
    note_capture(session, *stream);  // waiting for an event of a capture joins the capture
    return result;
}

}  // namespace gpupool::worker::handlers
