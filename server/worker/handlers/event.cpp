// Events. Each record that something still waits for has a driver's event of its own (event_record.h).

#include "server/worker/dispatch/serve.h"
#include "server/worker/scheduling/event_record.h"

namespace gpupool::worker::handlers {
namespace {

// Finds the state of the event for this record and returns it in `event`. The record is made now, or when the command
// is issued.
template <class Call>
Outcome record(Worker& worker, Command& command, codec::Slots<Call>& slots, unsigned flags,
               std::shared_ptr<EventState>& event) {
    CUresult result = CUDA_SUCCESS;
    StreamState* stream = worker.stream_of(command, slots.template at<Call::hStream>().value, result);
    if (stream == nullptr) {
        return result;
    }
    result = event_to_record(worker, command, slots.template at<Call::hEvent>().value, 0, *stream, event);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    const std::optional<Submission> submission =
        enter_event<Call>(worker, command, *stream, event, &Entry::records_event);
    if (!submission) {
        return Outcome::answered();
    }
    event->in_graph = event->in_graph || (stream->capturing && (flags & CU_EVENT_RECORD_EXTERNAL) != 0);
    worker.scheduler.enter(stream->context);
    result = flags == 0
                 ? driver::call(*submission, worker.api.cuEventRecord, event->driver, stream->driver)
                 : driver::call(*submission, worker.api.cuEventRecordWithFlags, event->driver, stream->driver, flags);
    event->latched = stream->latched;
    return result;
}

template <class Call>
Outcome record(Worker& worker, Command& command, codec::Slots<Call>& slots, unsigned flags) {
    std::shared_ptr<EventState> event;
    return record(worker, command, slots, flags, event);
}

template <class Call>
Outcome destroy(Worker& worker, codec::Slots<Call>& slots) {
    const CUevent client = slots.template at<Call::hEvent>().value;
    const auto known = worker.objects.events.find(client);
    if (known == worker.objects.events.end()) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    worker.scheduler.retire(*known->second);
    worker.objects.events.erase(known);
    worker.handles.unbind(codec::to_wire(client));
    return CUDA_SUCCESS;
}

// Runs `action` when the event's present record, which may still be queued, is complete.
Outcome when_recorded(Worker& worker, CUevent client, Action action, Effect effect) {
    const auto known = worker.objects.events.find(client);
    if (known == worker.objects.events.end()) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    const std::shared_ptr<EventState> event = known->second;
    worker.gate.after_record(event, [&worker, event, action = std::move(action), effect] {
        worker.scheduler.when_recorded(*event, action, effect);
    });
    return Outcome::answered();
}

// Returns an action that notifies the client how the record ended. CUDA_ERROR_INVALID_HANDLE makes the client query the
// event. A watch counts against the limit as long as its action exists, because a client could add any number of
// watches of a record that is queued.
Action notifier(Worker& worker, CUevent client, std::uint64_t record) {
    const std::shared_ptr<void> counted(&++worker.objects.event_watches, [](std::size_t* count) { --*count; });
    return [&worker, client, record, counted](CUresult result) {
        worker.send_what_precedes(result);
        const EventState* const event = worker.objects.event(client);
        result = event != nullptr ? event->context->result_to_notify(result) : result;
        worker.notify(codec::NoticeType::event_complete,
                      codec::EventCompleteNotice{codec::to_wire(client), record, result, 0});
    };
}

bool may_watch(const Worker& worker) {
    return worker.objects.event_watches <= Objects::kMaxEvents;
}

template <class Call>
Outcome elapsed(Worker& worker, Command& command, codec::Slots<Call>& slots,
                CUresult (*function)(float*, CUevent, CUevent)) {
    const EventState* start = worker.objects.event(slots.template at<Call::hStart>().value);
    const EventState* end = worker.objects.event(slots.template at<Call::hEnd>().value);
    if (start == nullptr || end == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (start->queued_record != 0 || end->queued_record != 0) {
        return CUDA_ERROR_NOT_READY;
    }
    (void)command;
    worker.scheduler.enter(start->context);
    return driver::call(function, slots.template at<Call::pMilliseconds>().value, start->driver, end->driver);
}

}  // namespace

Outcome cuEventCreate(Worker& worker, Command& command, codec::Slots<calls::cuEventCreate>& slots) {
    using Call = calls::cuEventCreate;
    const auto client = codec::from_wire<CUevent>(slots.at<Call::phEvent>().minted);
    ContextState* context = worker.context_of(command);
    if (context == nullptr) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (codec::kind_of(codec::to_wire(client)) != codec::HandleKind::event || worker.objects.event(client) != nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (worker.objects.events.size() >= Objects::kMaxEvents) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    worker.scheduler.enter(context);
    auto event = std::make_shared<EventState>();
    event->client = client;
    event->context = &context->owner();
    event->flags = slots.at<Call::Flags>().value;
    const CUresult result = driver::call(worker.api.cuEventCreate, &event->driver, event->flags);
    if (result == CUDA_SUCCESS) {
        slots.at<Call::phEvent>().object = event->driver;
        worker.objects.events[client] = std::move(event);
    }
    return result;
}

Outcome cuEventDestroy(Worker& worker, Command&, codec::Slots<calls::cuEventDestroy>& slots) {
    return destroy(worker, slots);
}

Outcome cuEventDestroy_v2(Worker& worker, Command&, codec::Slots<calls::cuEventDestroy_v2>& slots) {
    return destroy(worker, slots);
}

Outcome cuEventRecord(Worker& worker, Command& command, codec::Slots<calls::cuEventRecord>& slots) {
    return record(worker, command, slots, 0);
}

Outcome cuEventRecordWithFlags(Worker& worker, Command& command, codec::Slots<calls::cuEventRecordWithFlags>& slots) {
    return record(worker, command, slots, slots.at<calls::cuEventRecordWithFlags::flags>().value);
}

Outcome cuEventQuery(Worker& worker, Command& command, codec::Slots<calls::cuEventQuery>& slots) {
    const EventState* event = worker.objects.event(slots.at<calls::cuEventQuery::hEvent>().value);
    if (event == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (event->queued_record != 0) {
        return CUDA_ERROR_NOT_READY;
    }
    command.stream = event->recorded_in;
    worker.scheduler.enter(event->context);
    const CUresult result = driver::call(worker.api.cuEventQuery, event->driver);
    if (result == CUDA_SUCCESS) {
        worker.scheduler.flush_completions();
    }
    return result;
}

Outcome cuEventSynchronize(Worker& worker, Command& command, codec::Slots<calls::cuEventSynchronize>& slots) {
    const CUevent client = slots.at<calls::cuEventSynchronize::hEvent>().value;
    if (const EventState* const event = worker.objects.event(client)) {
        command.stream = event->recorded_in;
    }
    return when_recorded(
        worker, client, [&worker, command](CUresult result) { worker.answer(command, result, true); }, Effect::answers);
}

// The program queries this event, so the worker watches the record. If it cannot, because the record is queued or too
// many are watched, it sends a notice that makes the client query the event.
Outcome gpEventRecord(Worker& worker, Command& command, codec::Slots<calls::gpEventRecord>& slots) {
    using Call = calls::gpEventRecord;
    const bool already_notified = command.ready;
    std::shared_ptr<EventState> event;
    Outcome outcome = record(worker, command, slots, 0, event);
    if (already_notified) {
        return outcome;
    }
    const Action notify = notifier(worker, slots.at<Call::hEvent>().value, slots.at<Call::record>().value);
    if (outcome.verdict == Outcome::Verdict::done && outcome.result == CUDA_SUCCESS && may_watch(worker)) {
        worker.scheduler.when_recorded(*event, notify, Effect::notifies_of_event);
    } else {
        notify(CUDA_ERROR_INVALID_HANDLE);
    }
    return outcome;
}

Outcome gpEventWatch(Worker& worker, Command&, codec::Slots<calls::gpEventWatch>& slots) {
    using Call = calls::gpEventWatch;
    const CUevent client = slots.at<Call::event>().value;
    const Action notify = notifier(worker, client, slots.at<Call::record>().value);
    if (worker.objects.event(client) != nullptr && may_watch(worker)) {
        when_recorded(worker, client, notify, Effect::notifies_of_event);
    } else {
        notify(CUDA_ERROR_INVALID_HANDLE);
    }
    return CUDA_SUCCESS;
}

Outcome cuEventElapsedTime(Worker& worker, Command& command, codec::Slots<calls::cuEventElapsedTime>& slots) {
    return elapsed(worker, command, slots, worker.api.cuEventElapsedTime);
}

Outcome cuEventElapsedTime_v2(Worker& worker, Command& command, codec::Slots<calls::cuEventElapsedTime_v2>& slots) {
    return elapsed(
        worker, command, slots,
        worker.api.cuEventElapsedTime_v2 != nullptr ? worker.api.cuEventElapsedTime_v2 : worker.api.cuEventElapsedTime);
}

}  // namespace gpupool::worker::handlers
