// Events. Each record that something still waits for has a driver's event of its own (event_record.h).

#include "server/worker/handlers/handlers.h"
#include "server/worker/scheduling/event_record.h"

namespace gpupool::worker::handlers {
namespace {

// Finds the state of the event for this record and returns it in `event`. The record is made now, or when the command
// is issued.
template <class Call>
Outcome record(SessionView& session, Command& command, codec::Slots<Call>& slots, unsigned flags,
               std::shared_ptr<EventState>& event) {
    CUresult result = CUDA_SUCCESS;
    StreamState* stream = session.stream_of(command, slots.template at<Call::hStream>().value, result);
    if (stream == nullptr) {
        return result;
    }
    result = event_to_record(session, command, slots.template at<Call::hEvent>().value, 0, *stream, event);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    const std::optional<Submission> submission =
        enter_event<Call>(session, command, *stream, event, &Entry::records_event);
    if (!submission) {
        return Outcome::answered();
    }
    event->in_graph = event->in_graph || (stream->capturing && (flags & CU_EVENT_RECORD_EXTERNAL) != 0);
    session.scheduler.enter(stream->context);
    result = flags == 0
                 ? driver::call(*submission, session.api.cuEventRecord, event->driver, stream->driver)
                 : driver::call(*submission, session.api.cuEventRecordWithFlags, event->driver, stream->driver, flags);
    event->latched = stream->latched;
    return result;
}

template <class Call>
Outcome record(SessionView& session, Command& command, codec::Slots<Call>& slots, unsigned flags) {
    std::shared_ptr<EventState> event;
    return record(session, command, slots, flags, event);
}

template <class Call>
Outcome destroy(SessionView& session, codec::Slots<Call>& slots) {
    const CUevent client = slots.template at<Call::hEvent>().value;
    const auto known = session.objects.events.find(client);
    if (known == session.objects.events.end()) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    session.scheduler.retire(*known->second);
    session.objects.events.erase(known);
    session.handles.unbind(codec::to_wire(client));
    return CUDA_SUCCESS;
}

// Runs `action` when the event's present record, which may still be queued, is complete.
Outcome when_recorded(SessionView& session, CUevent client, Action action, Effect effect) {
    const auto known = session.objects.events.find(client);
    if (known == session.objects.events.end()) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    const std::shared_ptr<EventState> event = known->second;
    session.gate.after_record(event, [&session, event, action = std::move(action), effect] {
        session.scheduler.when_recorded(*event, action, effect);
    });
    return Outcome::answered();
}

// Returns an action that notifies the client how the record ended. CUDA_ERROR_INVALID_HANDLE makes the client query the
// event. A watch counts against the limit as long as its action exists, because a client could add any number of
// watches of a record that is queued.
Action notifier(SessionView& session, CUevent client, std::uint64_t record) {
    const std::shared_ptr<void> counted(&++session.objects.event_watches, [](std::size_t* count) { --*count; });
    return [&session, client, record, counted](CUresult result) {
        session.answers.send_what_precedes(result);
        const EventState* const event = session.objects.event(client);
        result = event != nullptr ? event->context->result_to_notify(result) : result;
        session.answers.notify(codec::NoticeType::event_complete,
                               codec::EventCompleteNotice{codec::to_wire(client), record, result, 0});
    };
}

bool may_watch(const SessionView& session) {
    return session.objects.event_watches <= Objects::kMaxEvents;
}

template <class Call>
Outcome elapsed(SessionView& session, Command& command, codec::Slots<Call>& slots,
                CUresult (*function)(float*, CUevent, CUevent)) {
    const EventState* start = session.objects.event(slots.template at<Call::hStart>().value);
    const EventState* end = session.objects.event(slots.template at<Call::hEnd>().value);
    if (start == nullptr || end == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (start->queued_record != 0 || end->queued_record != 0) {
        return CUDA_ERROR_NOT_READY;
    }
    (void)command;
    session.scheduler.enter(start->context);
    return driver::call(function, slots.template at<Call::pMilliseconds>().value, start->driver, end->driver);
}

}  // namespace

Outcome cuEventCreate(SessionView& session, Command& command, codec::Slots<calls::cuEventCreate>& slots) {
    using Call = calls::cuEventCreate;
    const auto client = codec::from_wire<CUevent>(slots.at<Call::phEvent>().minted);
    ContextState* context = session.context_of(command);
    if (context == nullptr) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (codec::kind_of(codec::to_wire(client)) != codec::HandleKind::event ||
        session.objects.event(client) != nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (session.objects.events.size() >= Objects::kMaxEvents) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    session.scheduler.enter(context);
    auto event = std::make_shared<EventState>();
    event->client = client;
    event->context = &context->owner();
    event->flags = slots.at<Call::Flags>().value;
    const CUresult result = driver::call(session.api.cuEventCreate, &event->driver, event->flags);
    if (result == CUDA_SUCCESS) {
        slots.at<Call::phEvent>().object = event->driver;
        session.objects.events[client] = std::move(event);
    }
    return result;
}

Outcome cuEventDestroy(SessionView& session, Command&, codec::Slots<calls::cuEventDestroy>& slots) {
    return destroy(session, slots);
}

Outcome cuEventDestroy_v2(SessionView& session, Command&, codec::Slots<calls::cuEventDestroy_v2>& slots) {
    return destroy(session, slots);
}

Outcome cuEventRecord(SessionView& session, Command& command, codec::Slots<calls::cuEventRecord>& slots) {
    return record(session, command, slots, 0);
}

Outcome cuEventRecordWithFlags(SessionView& session, Command& command,
                               codec::Slots<calls::cuEventRecordWithFlags>& slots) {
    return record(session, command, slots, slots.at<calls::cuEventRecordWithFlags::flags>().value);
}

Outcome cuEventQuery(SessionView& session, Command& command, codec::Slots<calls::cuEventQuery>& slots) {
    const EventState* event = session.objects.event(slots.at<calls::cuEventQuery::hEvent>().value);
    if (event == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (event->queued_record != 0) {
        return CUDA_ERROR_NOT_READY;
    }
    command.stream = event->recorded_in;
    session.scheduler.enter(event->context);
    const CUresult result = driver::call(session.api.cuEventQuery, event->driver);
    if (result == CUDA_SUCCESS) {
        session.scheduler.flush_completions();
    }
    return result;
}

Outcome cuEventSynchronize(SessionView& session, Command& command, codec::Slots<calls::cuEventSynchronize>& slots) {
    const CUevent client = slots.at<calls::cuEventSynchronize::hEvent>().value;
    if (const EventState* const event = session.objects.event(client)) {
        command.stream = event->recorded_in;
    }
    return when_recorded(
        session, client, [&session, command](CUresult result) { session.answers.give(command, result, true); },
        Effect::answers);
}

// The program queries this event, so the session watches the record. If it cannot, because the record is queued or too
// many are watched, it sends a notice that makes the client query the event.
Outcome gpEventRecord(SessionView& session, Command& command, codec::Slots<calls::gpEventRecord>& slots) {
    using Call = calls::gpEventRecord;
    const bool already_notified = command.ready;
    std::shared_ptr<EventState> event;
    Outcome outcome = record(session, command, slots, 0, event);
    if (already_notified) {
        return outcome;
    }
    const Action notify = notifier(session, slots.at<Call::hEvent>().value, slots.at<Call::record>().value);
    if (outcome.verdict == Outcome::Verdict::done && outcome.result == CUDA_SUCCESS && may_watch(session)) {
        session.scheduler.when_recorded(*event, notify, Effect::notifies_of_event);
    } else {
        notify(CUDA_ERROR_INVALID_HANDLE);
    }
    return outcome;
}

Outcome gpEventWatch(SessionView& session, Command&, codec::Slots<calls::gpEventWatch>& slots) {
    using Call = calls::gpEventWatch;
    const CUevent client = slots.at<Call::event>().value;
    const Action notify = notifier(session, client, slots.at<Call::record>().value);
    if (session.objects.event(client) != nullptr && may_watch(session)) {
        when_recorded(session, client, notify, Effect::notifies_of_event);
    } else {
        notify(CUDA_ERROR_INVALID_HANDLE);
    }
    return CUDA_SUCCESS;
}

Outcome cuEventElapsedTime(SessionView& session, Command& command, codec::Slots<calls::cuEventElapsedTime>& slots) {
    return elapsed(session, command, slots, session.api.cuEventElapsedTime);
}

Outcome cuEventElapsedTime_v2(SessionView& session, Command& command,
                              codec::Slots<calls::cuEventElapsedTime_v2>& slots) {
    return elapsed(session, command, slots,
                   session.api.cuEventElapsedTime_v2 != nullptr ? session.api.cuEventElapsedTime_v2
                                                                : session.api.cuEventElapsedTime);
}

}  // namespace gpupool::worker::handlers
