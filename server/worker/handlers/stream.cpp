// Streams: created at once, since that never blocks; destroyed in stream order.

#include <algorithm>
#include <chrono>

#include "server/worker/dispatch/serve.h"
#include "server/worker/scheduling/capture.h"

namespace gpupool::worker::handlers {
namespace {

// The dispatcher releases a destroyed stream when it finds its work complete, and polls for that between batches of
// commands. A batch may destroy thousands of streams, so create() polls after this many as well.
constexpr std::size_t kDestroyedPerPoll = 256;
// If there are too many streams, create() waits as long as the GPU makes progress within this time, but never for
// something that the client may have to bring about.
constexpr std::chrono::milliseconds kProgressTimeout{200};

bool make_room(Worker& worker) {
    if (worker.objects.streams_destroyed >= kDestroyedPerPoll) {
        worker.objects.streams_destroyed = 0;
        worker.catch_up();
    }
    if (worker.objects.stream_fits()) {
        return true;
    }
    std::size_t count = worker.objects.stream_count();
    for (auto last = worker.clock.now();
         worker.objects.ending_stream_count() != 0 && worker.clock.now() - last < kProgressTimeout;) {
        worker.catch_up();
        if (worker.objects.stream_fits()) {
            return true;
        }
        if (const std::size_t now = worker.objects.stream_count(); now < count) {
            last = worker.clock.now();
            count = now;
        }
        worker.clock.sleep_for(std::chrono::microseconds(100));
    }
    return false;
}

// Must memory be charged for one stream more?
bool takes_memory(const Worker& worker, const ContextState& context) {
    return worker.memory.driver.needed_for_streams(context, context.streams.size() + 1) != 0;
}

bool charge_stream(Worker& worker, const ContextState& context) {
    const std::size_t count = context.streams.size() + 1;
    const std::uint64_t bytes = worker.memory.driver.needed_for_streams(context, count);
    if (bytes != 0 && !worker.memory.charge(worker.api, context.device, bytes)) {
        return false;
    }
    worker.memory.driver.note_streams(context, count);
    return true;
}

template <class Call>
Outcome create(Worker& worker, Command& command, codec::Slots<Call>& slots, unsigned flags, int priority) {
    const auto client = codec::from_wire<CUstream>(slots.template at<Call::phStream>().minted);
    const bool has_room = make_room(worker);  // which may end contexts
    ContextState* context = worker.context_of(command);
    if (context != nullptr && takes_memory(worker, *context)) {
        worker.catch_up();  // streams that the program has destroyed may still be there; may end contexts as well
        context = worker.context_of(command);
    }
    if (context == nullptr) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (codec::kind_of(codec::to_wire(client)) != codec::HandleKind::stream || context->streams.contains(client)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!has_room) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (!charge_stream(worker, *context)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    worker.scheduler.enter(context);
    auto stream = std::make_unique<StreamState>();
    const CUresult result = driver::call(worker.api.cuStreamCreateWithPriority, &stream->driver, flags, priority);
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
void end_stream(Worker& worker, CUstream client, CUcontext context) {
    ContextState* const state = worker.objects.context(context);
    if (state == nullptr) {
        return;
    }
    const auto it = state->streams.find(client);
    if (it == state->streams.end()) {
        return;
    }
    StreamState& stream = *it->second;
    worker.scheduler.enter(state);
    stream.gone = true;
    driver::call(worker.api.cuStreamDestroy_v2, stream.driver);
    keep_first_error(state->latched_by_ended, stream.take_latched());
    worker.tracer.forget(stream);
    worker.gate.forget(stream, state->lost);  // the end of a dead context's stream does not mean that its work is done
    const bool ends_capture = stream.began_capture;
    state->streams.erase(it);
    ends_capture ? note_end_of_capture(worker) : note_captures(worker);
}

template <class Call>
Outcome destroy(Worker& worker, Command& command, codec::Slots<Call>& slots) {
    CUresult result = CUDA_SUCCESS;
    const CUstream client = slots.template at<Call::hStream>().value;
    StreamState* stream = worker.stream_of(command, client, result);
    if (stream == nullptr) {
        return result;
    }
    if (stream->client == nullptr || stream->client == CU_STREAM_PER_THREAD) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    worker.objects.streams_destroyed += std::exchange(stream->ending, true) ? 0 : 1;
    if (!stream->queue.empty() && !command.ready) {
        worker.gate.queue(*stream, std::make_unique<QueuedCommand>(worker, command));
        return Outcome::answered();
    }
    worker.scheduler.enter(stream->context);
    if (stream->began_capture) {
        discard_capture(worker, *stream);
    }
    // Deferred, because the action may run while the scheduler iterates over this very stream.
    const auto end = [&worker, client, context = stream->context->client](CUresult) {
        worker.gate.when_open([&worker, client, context] { end_stream(worker, client, context); });
    };
    // Completions that are yet to be polled refer to the stream: it is destroyed when they are found.
    if (stream->capturing) {
        worker.scheduler.when_complete_before_capture(*stream, end);
    } else {
        worker.scheduler.mark(*stream, end);
    }
    return CUDA_SUCCESS;
}

}  // namespace

Outcome cuStreamCreate(Worker& worker, Command& command, codec::Slots<calls::cuStreamCreate>& slots) {
    return create(worker, command, slots, slots.at<calls::cuStreamCreate::Flags>().value, 0);
}

Outcome cuStreamCreateWithPriority(Worker& worker, Command& command,
                                   codec::Slots<calls::cuStreamCreateWithPriority>& slots) {
    using Call = calls::cuStreamCreateWithPriority;
    return create(worker, command, slots, slots.at<Call::flags>().value, slots.at<Call::priority>().value);
}

Outcome gpGreenStreamCreate(Worker& worker, Command&, codec::Slots<calls::gpGreenStreamCreate>& slots) {
    using Call = calls::gpGreenStreamCreate;
    const auto client = codec::from_wire<CUstream>(slots.at<Call::stream>().minted);
    const bool has_room = make_room(worker);  // which may end contexts
    ContextState* const context = worker.objects.context(slots.at<Call::context>().value);
    if (context == nullptr || context->green == nullptr || context->ending) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (codec::kind_of(codec::to_wire(client)) != codec::HandleKind::stream || context->streams.contains(client)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!has_room) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    auto stream = std::make_unique<StreamState>();
    const CUresult result =
        driver::call(worker.api.cuGreenCtxStreamCreate, &stream->driver, context->green,
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

Outcome cuStreamDestroy(Worker& worker, Command& command, codec::Slots<calls::cuStreamDestroy>& slots) {
    return destroy(worker, command, slots);
}

Outcome cuStreamDestroy_v2(Worker& worker, Command& command, codec::Slots<calls::cuStreamDestroy_v2>& slots) {
    return destroy(worker, command, slots);
}

Outcome cuStreamQuery(Worker& worker, Command& command, codec::Slots<calls::cuStreamQuery>& slots) {
    CUresult result = CUDA_SUCCESS;
    StreamState* stream = worker.stream_of(command, slots.at<calls::cuStreamQuery::hStream>().value, result);
    if (stream == nullptr) {
        return result;
    }
    result = worker.scheduler.query(*stream);
    if (result == CUDA_SUCCESS) {
        worker.scheduler.flush_completions();
    }
    return result;
}

Outcome gpStreamWatch(Worker& worker, Command& command, codec::Slots<calls::gpStreamWatch>& slots) {
    CUresult result = CUDA_SUCCESS;
    const CUstream handle = slots.at<calls::gpStreamWatch::stream>().value;
    const std::uint64_t number = command.header.number;
    if (const StreamState* const stream = worker.stream_of(command, handle, result)) {
        worker.stream_watches.add(stream->name(), number);
    } else {
        worker.stream_watches.notify(
            {codec::from_wire<CUcontext>(command.header.context), command.meant(handle), command.header.thread}, number,
            result);
    }
    return CUDA_SUCCESS;
}

Outcome cuStreamSynchronize(Worker& worker, Command& command, codec::Slots<calls::cuStreamSynchronize>& slots) {
    CUresult result = CUDA_SUCCESS;
    StreamState* stream = worker.stream_of(command, slots.at<calls::cuStreamSynchronize::hStream>().value, result);
    if (stream == nullptr) {
        return result;
    }
    auto answer = [&worker, command](CUresult verdict) { worker.answer(command, verdict, true); };
    if (stream->legacy) {
        // The legacy stream waits for all blocking streams, so this call does too.
        worker.gate.when_blocking_complete(*stream->context, std::move(answer));
    } else {
        worker.gate.when_complete(*stream, std::move(answer));
    }
    return Outcome::answered();
}

Outcome cuStreamWaitEvent(Worker& worker, Command& command, codec::Slots<calls::cuStreamWaitEvent>& slots) {
    using Call = calls::cuStreamWaitEvent;
    CUresult result = CUDA_SUCCESS;
    StreamState* stream = worker.stream_of(command, slots.at<Call::hStream>().value, result);
    if (stream == nullptr) {
        return result;
    }
    std::shared_ptr<EventState> event;
    if (command.ready) {
        event = command.events.front();
    } else if (const auto known = worker.objects.events.find(slots.at<Call::hEvent>().value);
               known != worker.objects.events.end()) {
        event = known->second;
    } else {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    const unsigned flags = slots.at<Call::Flags>().value;
    std::optional<Submission> submission = enter_event<Call>(worker, command, *stream, event, &Entry::names);
    if (!submission) {
        return Outcome::answered();
    }
    worker.scheduler.enter(stream->context);
    if (worker.captures != 0 && !stream->capturing && stream->unmarked != 0) {
        worker.scheduler.mark(*stream, {});  // it may be about to join a capture, after which no mark may enter it
    }
    event->in_graph = event->in_graph || (stream->capturing && (flags & CU_EVENT_WAIT_EXTERNAL) != 0);
    result = driver::call(*submission, worker.api.cuStreamWaitEvent, stream->driver, event->driver, flags);
    if (event->latched != CUDA_SUCCESS) [[unlikely]] {
        const StreamState* const source = worker.objects.stream(event->recorded_in);
        if (source == nullptr || source->latched != CUDA_SUCCESS) {  // else a call has reported the error
            stream->latch(event->latched);
        }
    }
    submission->end();
    note_capture(worker, *stream);  // waiting for an event of a capture joins the capture
    return result;
}

}  // namespace gpupool::worker::handlers
