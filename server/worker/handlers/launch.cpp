// Kernel launches, and queries about them.

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "common/log.h"
#include "server/worker/dispatch/inbox.h"
#include "server/worker/handlers/handlers.h"
#include "server/worker/scheduling/driver_door.h"
#include "server/worker/scheduling/event_record.h"
#include "server/worker/scheduling/issuers.h"

namespace gpupool::worker::handlers {
namespace {

using LaunchEvents = std::vector<std::shared_ptr<EventState>>;

// Collects the events that a launch with these attributes records, and replaces them by the driver's.
CUresult translate(SessionView& session, const Command& command, const StreamState& stream,
                   std::vector<CUlaunchAttribute>& attributes, LaunchEvents& recorded) {
    CUresult result = CUDA_SUCCESS;
    for (CUlaunchAttribute& attribute : attributes) {
        codec::StructTraits<CUlaunchAttribute>::visit(attribute, [&](CUevent& event) {
            std::shared_ptr<EventState> state;
            const CUresult found = event_to_record(session, command, event, recorded.size(), stream, state);
            if (found != CUDA_SUCCESS) {
                keep_first_error(result, found);
                return;
            }
            event = state->driver;
            recorded.push_back(std::move(state));
        });
    }
    return result;
}

// Calls that wait for the events meanwhile wait for the launch.
void name_events(Entry& entry, const LaunchEvents& events) {
    for (const std::shared_ptr<EventState>& event : events) {
        entry.records_event(event);
    }
}

// May the launch be issued later than it arrived, in order only with its own stream?
bool is_independent(const SessionView& session, const Command& command, const ContextState* context,
                    const StreamState& stream, bool records_events) {
    return !command.ready && !command.reply_wanted() && stream.client != nullptr && !stream.capturing &&
           !records_events && Scheduler::may_issue_elsewhere(stream) && !session.tracer.on() &&
           context == stream.context;
}

// Charges the room that the driver makes if the function needs more local memory than any before it.
CUresult charge_local_memory(SessionView& session, const ContextState& context, const KernelLaunch& launch) {
    constexpr auto kLocal = CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES;
    int bytes = 0;
    if (launch.is_kernel()) {
        driver::call(session.api.cuKernelGetAttribute, &bytes, kLocal, reinterpret_cast<CUkernel>(launch.function),
                     context.device);
    } else {
        driver::call(session.api.cuFuncGetAttribute, &bytes, kLocal, launch.function);
    }
    return session.memory.charge_limit(session.api, context, CU_LIMIT_STACK_SIZE,
                                       static_cast<std::size_t>(std::max(bytes, 0)))
               ? CUDA_SUCCESS
               : CUDA_ERROR_OUT_OF_MEMORY;
}

// A function's first launch, made on a helper: the driver waits for the GPU if the function needs more local memory
// than any before it, and the GPU may be waiting for the dispatcher. The stream's context must be current.
class FirstLaunch final : public EntryOfCommand<SessionView> {
  public:
    FirstLaunch(SessionView& session, Command command, StreamState& stream, KernelLaunch launch,
                std::shared_ptr<Submission::Lent> permit)
        : EntryOfCommand(session, std::move(command)),
          stream_(stream),
          launch_(std::make_shared<Kept>(std::move(launch))),
          work_(session_.tracer, stream, codec::TraceKind::kernel) {
        command_.keep_header(kQueuedCostBytes);
        kind = calls::Kind::work;
        work_.name(launch_->shape.function, launch_->function);
        // Now, not when the entry is advanced: the next command may launch the function too, and would not count as
        // its first.
        call_ = WaitingCall::run(session_.waiting_calls, session_.api, stream_.context->driver,
                                 [&api = session_.api, launch = launch_, permit = std::move(permit)] {
                                     return launch->issue(*permit, api);
                                 });
    }
    Reason advance() override {
        if (!call_->result) {
            return Reason::driver_call;
        }
        work_.end(*call_->result);
        submission->end();
        if (*call_->result != CUDA_SUCCESS) {
            session_.handles.forget_use(launch_->shape.function);
            note_failure(session_.api, *launch_, *call_->result);
        }
        session_.answers.give(command_, *call_->result);
        return Reason::none;
    }

  private:
    // Has arguments of its own, so that the frame can be freed.
    struct Kept : KernelLaunch {
        explicit Kept(KernelLaunch launch) : KernelLaunch(std::move(launch)), own(arguments.begin(), arguments.end()) {
            arguments = own;
        }
        std::vector<unsigned char> own;
    };
    StreamState& stream_;
    const std::shared_ptr<Kept> launch_;
    Tracer::Work work_;
    std::shared_ptr<WaitingCall> call_;
};

Outcome queue_launch(SessionView& session, Command& command, StreamState& stream,
                     std::vector<CUlaunchAttribute>& attributes) {
    const CUresult result = translate(session, command, stream, attributes, command.events);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    auto entry = std::make_unique<QueuedCommand>(session, command, calls::Kind::work);
    name_events(*entry, command.events);
    session.gate.queue(stream, std::move(entry));
    return Outcome::answered();
}

}  // namespace

Outcome gpLaunch(LaunchView& session, Command& command, codec::Slots<calls::gpLaunch>& slots) {
    using Call = calls::gpLaunch;
    CUresult result = CUDA_SUCCESS;
    std::vector<CUlaunchAttribute>& attributes = slots.at<Call::attributes>().object;
    StreamState* const stream = session.stream_of(command, slots.at<Call::stream>().value, result);
    if (stream == nullptr) {
        return result;
    }
    std::optional<Submission> submission = session.gate.enter(*stream, Call::kKind);
    if (!submission) {
        return queue_launch(session, command, *stream, attributes);
    }
    if (slots.at<Call::launch>().value == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    KernelLaunch launch;
    launch.shape = slots.at<Call::launch>().object;
    launch.function = launch.shape.function;
    launch.stream = stream->driver;
    launch.captured = stream->capturing;
    launch.attributes = std::move(attributes);
    launch.arguments = slots.at<Call::arguments>().object;
    LaunchEvents recorded;
    if (result = translate(session, command, *stream, launch.attributes, recorded); result != CUDA_SUCCESS) {
        return result;
    }
    bool first = false;
    const HandleTable::Lookup function =
        stream->capturing ? session.handles.find(launch.function)
                          : session.handles.use(launch.function, stream->context->owner().number, first);
    if (function.found != HandleTable::Found::yes || function.driver == 0) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    launch.function = codec::from_wire<CUfunction>(function.driver);
    if (first && (result = charge_local_memory(session, *stream->context, launch)) != CUDA_SUCCESS) {
        session.handles.forget_use(launch.shape.function);
        return result;
    }
    const ContextState* const context = session.context_of(command);
    if (first && session.door.gpu_may_wait_for_us()) [[unlikely]] {
        session.issuers.drain();  // otherwise the waiting call would block the issuers' launches
        session.scheduler.enter(stream->context);
        auto elsewhere = std::make_unique<FirstLaunch>(session, command, *stream, std::move(launch),
                                                       std::make_shared<Submission::Lent>(submission->lend()));
        if (!command.ready) {  // else the queued command names them already
            name_events(*elsewhere, recorded);
        }
        session.gate.go_on(std::move(*submission), std::move(elsewhere));
        return Outcome::answered();
    }
    for (const std::shared_ptr<EventState>& event : recorded) {
        event->in_graph = event->in_graph || stream->capturing;
    }
    const bool independent = is_independent(session, command, context, *stream, !recorded.empty());
    if (independent && session.issuers.takes(*stream, session.inbox.more_to_come())) {
        session.issuers.hand_out(std::move(*submission), command, std::move(launch));
        return Outcome::answered();
    }
    if (!independent || session.issuers.busy_with(*stream)) {
        session.issuers.drain();
    }
    if (result = session.scheduler.enter(context); result != CUDA_SUCCESS) {
        session.handles.forget_use(launch.shape.function);
        return result;
    }
    Tracer::Work work(session.tracer, *stream, codec::TraceKind::kernel);
    work.name(launch.shape.function, launch.function);
    result = launch.issue(*submission, session.api);
    work.end(result);
    if (result != CUDA_SUCCESS) {
        session.handles.forget_use(launch.shape.function);
        note_failure(session.api, launch, result);
    }
    return result;
}

Outcome gpOccupancyClusters(SessionView& session, Command& command, codec::Slots<calls::gpOccupancyClusters>& slots) {
    using Call = calls::gpOccupancyClusters;
    LaunchShape& launch = slots.at<Call::launch>().object;
    std::vector<CUlaunchAttribute>& attributes = slots.at<Call::attributes>().object;
    CUfunction function = launch.function;
    if (const CUresult result = driver_handle(session, function); result != CUDA_SUCCESS) {
        return result;
    }
    bool known = true;
    for (CUlaunchAttribute& attribute : attributes) {
        codec::StructTraits<CUlaunchAttribute>::visit(attribute, [&](CUevent& event) {
            const EventState* const state = session.objects.event(event);
            known = known && state != nullptr;
            event = state == nullptr ? nullptr : state->driver;
        });
    }
    if (!known) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    session.scheduler.enter(session.context_of(command));
    const CUlaunchConfig config = config_of(launch, attributes, nullptr);
    const bool potential = slots.at<Call::potential>().value != 0;
    return driver::call(
        potential ? session.api.cuOccupancyMaxPotentialClusterSize : session.api.cuOccupancyMaxActiveClusters,
        slots.at<Call::result>().value, function, &config);
}

}  // namespace gpupool::worker::handlers
