// Kernel launches and what is asked about them.

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/log.h"
#include "server/worker/serve.h"

namespace gpupool::worker::handlers {
namespace {

CUresult translate(Worker& worker, std::vector<CUlaunchAttribute>& attributes, bool& names_events) {
    for (CUlaunchAttribute& attribute : attributes) {
        CUresult result = CUDA_SUCCESS;
        codec::StructTraits<CUlaunchAttribute>::visit(attribute, [&](CUevent& event) {
            names_events = true;
            const EventState* state = worker.objects.event(event);
            if (state == nullptr) {
                result = CUDA_ERROR_INVALID_HANDLE;
            } else {
                event = state->driver;
            }
        });
        if (result != CUDA_SUCCESS) {
            return result;
        }
    }
    return CUDA_SUCCESS;
}

// The launch is held, and the events that it names with it.
void keep_events(Worker& worker, const Command& command, std::vector<CUlaunchAttribute>& attributes, Outcome& held) {
    for (CUlaunchAttribute& attribute : attributes) {
        codec::StructTraits<CUlaunchAttribute>::visit(attribute, [&](CUevent& event) {
            if (const auto it = worker.objects.events.find(event); it != worker.objects.events.end()) {
                if (held.operation == nullptr) {
                    held.operation = std::make_unique<HeldCommand>(worker, command);
                }
                held.operation->names(it->second);
            }
        });
    }
}

// May it be issued at another moment than it comes, if only behind what its stream was given?
bool is_independent(const Worker& worker, const Command& command, const ContextState* context,
                    const StreamState& stream, bool names_events) {
    return !command.its_turn && !command.reply_wanted() && !stream.legacy && !stream.capturing && !names_events &&
           Scheduler::may_issue_elsewhere(stream) && !worker.tracer.on() && context == stream.context;
}

// A function's first launch. The driver waits for the GPU where it needs more local memory than any before it, and the
// GPU may have to wait for us: so another thread makes the call.
class FirstLaunch final : public HeldForCommand {
  public:
    FirstLaunch(Worker& worker, Command command, StreamState& stream, KernelLaunch launch)
        : HeldForCommand(worker, std::move(command)),
          stream_(stream),
          launch_(std::make_shared<KernelLaunch>(std::move(launch))) {
        command_.keep_header(kHeldCostBytes);
    }
    bool advance() override {
        const Tracer::Issue issuing(worker_.tracer, command_.header, true);
        if (!work_) {
            begin();
            return false;
        }
        if (!call_->result) {
            return false;
        }
        work_->end(*call_->result);
        worker_.scheduler.issued(stream_);
        if (*call_->result != CUDA_SUCCESS) {
            note_failure(worker_.api, *launch_, *call_->result);
        }
        worker_.answer(command_, *call_->result);
        return true;
    }

  private:
    void begin() {
        worker_.scheduler.enter(stream_.context);
        work_.emplace(worker_.tracer, stream_, codec::TraceKind::kernel);
        work_->name(launch_->shape.function, launch_->function);
        call_ = WaitingCall::run(worker_, stream_.context->driver,
                                 [&api = worker_.api, launch = launch_] { return launch->issue(api); });
    }

    StreamState& stream_;
    const std::shared_ptr<KernelLaunch> launch_;
    std::optional<Tracer::Work> work_;  // once it has begun
    std::shared_ptr<WaitingCall> call_;
};

}  // namespace

Outcome gpLaunch(Worker& worker, Command& command, codec::Slots<calls::gpLaunch>& slots) {
    using Call = calls::gpLaunch;
    CUresult result = CUDA_SUCCESS;
    StreamState* stream = nullptr;
    if (auto waiting = await_turn(worker, command, slots.at<Call::stream>().value, stream)) {
        if (waiting->verdict == Outcome::Verdict::hold) {
            keep_events(worker, command, slots.at<Call::attributes>().object, *waiting);
        }
        return std::move(*waiting);
    }
    if (slots.at<Call::launch>().value == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    KernelLaunch launch;
    launch.shape = slots.at<Call::launch>().object;
    launch.function = launch.shape.function;
    launch.stream = stream->driver;
    launch.attributes = std::move(slots.at<Call::attributes>().object);
    launch.arguments = std::move(slots.at<Call::arguments>().object);
    bool first = false;
    const HandleTable::Lookup function = worker.handles.use(launch.function, stream->context->number, first);
    if (function.found != HandleTable::Found::yes) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    launch.function = codec::from_wire<CUfunction>(function.driver);
    bool names_events = false;
    if (result = translate(worker, launch.attributes, names_events); result != CUDA_SUCCESS) {
        return result;
    }
    if (first && !stream->capturing && worker.gpu_may_wait_for_us()) [[unlikely]] {
        return Outcome::hold(*stream, std::make_unique<FirstLaunch>(worker, command, *stream, std::move(launch)));
    }
    const ContextState* const context = worker.context_of(command);
    const bool independent = is_independent(worker, command, context, *stream, names_events);
    if (independent && worker.issuers.takes(*stream, worker.more_to_come())) {
        worker.issuers.hand_out(*stream, command, std::move(launch), worker.scheduler.issued_elsewhere(*stream));
        return Outcome::answered();
    }
    if (!independent || worker.issuers.busy_with(*stream)) {
        worker.settle_launches();
    }
    if (result = worker.scheduler.enter(context); result != CUDA_SUCCESS) {
        return result;
    }
    Tracer::Work work(worker.tracer, *stream, codec::TraceKind::kernel);
    work.name(launch.shape.function, launch.function);
    result = launch.issue(worker.api);
    work.end(result);
    worker.scheduler.issued(*stream);
    if (result != CUDA_SUCCESS) {
        note_failure(worker.api, launch, result);
    }
    return result;
}

Outcome gpOccupancyClusters(Worker& worker, Command& command, codec::Slots<calls::gpOccupancyClusters>& slots) {
    using Call = calls::gpOccupancyClusters;
    LaunchShape& launch = slots.at<Call::launch>().object;
    std::vector<CUlaunchAttribute>& attributes = slots.at<Call::attributes>().object;
    CUfunction function = launch.function;
    if (const CUresult result = driver_handle(worker, function); result != CUDA_SUCCESS) {
        return result;
    }
    bool names_events = false;
    if (const CUresult result = translate(worker, attributes, names_events); result != CUDA_SUCCESS) {
        return result;
    }
    worker.scheduler.enter(worker.context_of(command));
    const CUlaunchConfig config = config_of(launch, attributes, nullptr);
    const bool potential = slots.at<Call::potential>().value != 0;
    return driver::call(
        potential ? worker.api.cuOccupancyMaxPotentialClusterSize : worker.api.cuOccupancyMaxActiveClusters,
        slots.at<Call::result>().value, function, &config);
}

}  // namespace gpupool::worker::handlers
