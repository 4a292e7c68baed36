// Green contexts and the resources that they are made of, and events that concern a whole context.

#include "server/worker/handlers/contexts.h"
#include "server/worker/handlers/handlers.h"
#include "server/worker/memory/context_owners.h"
#include "server/worker/scheduling/capture.h"
#include "server/worker/scheduling/event_record.h"
#include "server/worker/scheduling/issuers.h"
#include "server/worker/session/device_resources.h"

namespace gpupool::worker::handlers {
namespace {

constexpr std::size_t kMaxGroups = 4096;  // of one split or one descriptor

// Destroys the streams and events of a green context whose work is complete, then the context.
void end_green(GreenContextView& session, CUcontext client) {
    ContextState* const state = session.objects.context(client);
    if (state == nullptr) {
        return;
    }
    const CUgreenCtx green = state->green;
    const CUcontext driver = state->driver;
    // Streams and events would otherwise stay in the primary context.
    session.scheduler.enter(state);
    for (const auto& [name, stream] : state->streams) {
        driver::call(session.api.cuStreamDestroy_v2, stream->driver);
    }
    for (const CUevent event : state->spare_events) {
        driver::call(session.api.cuEventDestroy_v2, event);
    }
    const std::size_t captures = forget_context(session, *state);
    session.waiting_calls.run(
        [&api = session.api, green] { driver::call(api.cuGreenCtxDestroy, green); },
        [&session, driver, captures] {
            session.context_owners.remove(driver);
            session.gate.when_open([&session, captures] {
                note_captures(session);  // streams of other contexts may have joined those captures
                session.objects.captures -= captures;
            });
        });
}

// The driver does not know of work that the session holds, so these calls wait until all of it has been issued.
bool serve_later(GreenContextView& session, Command& command) {
    if (command.ready || !session.gate.queues_any()) {
        session.issuers.drain();
        return false;
    }
    serve_after_all(session, command);
    return true;
}

}  // namespace

Outcome cuDeviceGetDevResource(GreenContextView& session, Command&,
                               codec::Slots<calls::cuDeviceGetDevResource>& slots) {
    using Call = calls::cuDeviceGetDevResource;
    auto& resource = slots.at<Call::resource>();
    const CUresult result = driver::call(session.api.cuDeviceGetDevResource, slots.at<Call::device>().value,
                                         resource.value, slots.at<Call::type>().value);
    return result != CUDA_SUCCESS ? result : session.device_resources.give(resource.object);
}

Outcome cuCtxGetDevResource(GreenContextView& session, Command&, codec::Slots<calls::cuCtxGetDevResource>& slots) {
    using Call = calls::cuCtxGetDevResource;
    auto& resource = slots.at<Call::resource>();
    const ContextState* const context = session.objects.context(slots.at<Call::hCtx>().value);
    if (context == nullptr || context->ending) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    const auto type = slots.at<Call::type>().value;
    const CUresult result =
        context->green != nullptr
            ? driver::call(session.api.cuGreenCtxGetDevResource, context->green, resource.value, type)
            : driver::call(session.api.cuCtxGetDevResource, context->driver, resource.value, type);
    return result != CUDA_SUCCESS ? result : session.device_resources.give(resource.object);
}

Outcome gpSmResourceSplit(GreenContextView& session, Command&, codec::Slots<calls::gpSmResourceSplit>& slots) {
    using Call = calls::gpSmResourceSplit;
    auto& groups = slots.at<Call::groups>();
    auto& count = slots.at<Call::count>();
    auto& given = slots.at<Call::given>();
    auto& remaining = slots.at<Call::remaining>();
    const unsigned capacity = slots.at<Call::capacity>().value;
    if (count.value == nullptr || given.value == nullptr || capacity > kMaxGroups) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (const CUresult result = session.device_resources.take(given.object); result != CUDA_SUCCESS) {
        return result;
    }
    count.object = capacity;
    CUresult result = driver::call(session.api.cuDevSmResourceSplitByCount, groups.value, &count.object,
                                   static_cast<const CUdevResource*>(&given.object), remaining.value,
                                   slots.at<Call::flags>().value, slots.at<Call::least>().value);
    for (std::size_t i = 0; groups.value != nullptr && i < groups.object.size() && result == CUDA_SUCCESS; ++i) {
        if (i < count.object) {
            result = session.device_resources.give(groups.object[i]);
        } else {
            groups.object[i] = {};
        }
    }
    return result == CUDA_SUCCESS && remaining.value != nullptr ? session.device_resources.give(remaining.object)
                                                                : result;
}

Outcome cuDevResourceGenerateDesc(GreenContextView& session, Command&,
                                  codec::Slots<calls::cuDevResourceGenerateDesc>& slots) {
    using Call = calls::cuDevResourceGenerateDesc;
    auto& resources = slots.at<Call::resources>();
    auto& descriptor = slots.at<Call::phDesc>();
    if (resources.object.empty() || resources.object.size() > kMaxGroups || descriptor.value == nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (session.device_resources.descriptors >= DeviceResources::kMaxDescriptors) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    for (CUdevResource& resource : resources.object) {
        if (const CUresult result = session.device_resources.take(resource); result != CUDA_SUCCESS) {
            return result;
        }
    }
    const CUresult result = driver::call(session.api.cuDevResourceGenerateDesc, &descriptor.object,
                                         resources.object.data(), static_cast<unsigned>(resources.object.size()));
    session.device_resources.descriptors += result == CUDA_SUCCESS ? 1 : 0;
    return result;
}

Outcome gpGreenContextCreate(GreenContextView& session, Command& command,
                             codec::Slots<calls::gpGreenContextCreate>& slots) {
    using Call = calls::gpGreenContextCreate;
    const auto client = codec::from_wire<CUcontext>(slots.at<Call::context>().minted);
    const CUdevice device = slots.at<Call::device>().value;
    const unsigned flags = slots.at<Call::flags>().value;
    CUdevResourceDesc descriptor = slots.at<Call::descriptor>().value;  // null: all of the device
    if (codec::kind_of(codec::to_wire(client)) != codec::HandleKind::context ||
        session.objects.context(client) != nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (descriptor != nullptr) {
        if (const CUresult result = driver_handle(session, descriptor); result != CUDA_SUCCESS) {
            return result;
        }
    }
    ContextState* const primary = session.objects.primary(device);
    if (primary == nullptr || primary->ending) {
        return CUDA_ERROR_INVALID_CONTEXT;  // the client makes it first
    }
    const auto green = std::make_shared<CUgreenCtx>(nullptr);
    const auto make = [&api = session.api, green, descriptor, device, flags](CUcontext* context) {
        CUresult result = driver::call(api.cuGreenCtxCreate, green.get(), descriptor, device, flags);
        if (result != CUDA_SUCCESS) {
            return result;
        }
        if (result = driver::call(api.cuCtxFromGreenCtx, context, *green); result != CUDA_SUCCESS) {
            driver::call(api.cuGreenCtxDestroy, *green);
        }
        return result;
    };
    const auto known = [&session, green](ContextState& state) {
        state.green = *green;
        state.legacy.legacy = false;
        state.legacy.blocking = false;
        state.parent = session.objects.primary(state.device);
        if (state.parent != nullptr) {
            state.parent->greens.push_back(&state);
            session.context_owners.add(state.driver, state.parent->driver);
        }
    };
    make_context(session, command, {client, device, false, true, make, known});
    return Outcome::answered();
}

// The client is answered at once, as with the driver. The context ends when its work is complete, so that a wait for
// the primary context covers that work.
Outcome gpGreenContextDestroy(GreenContextView& session, Command&, codec::Slots<calls::gpGreenContextDestroy>& slots) {
    const CUcontext client = slots.at<calls::gpGreenContextDestroy::context>().value;
    ContextState* const state = session.objects.context(client);
    if (state == nullptr || state->green == nullptr || state->ending) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    state->ending = true;
    // Postponed, because the action may run while the scheduler iterates over the context's streams.
    session.gate.when_complete(*state, [&session, client](CUresult) {
        session.gate.when_open([&session, client] { end_green(session, client); });
    });
    return CUDA_SUCCESS;
}

Outcome gpContextRecordEvent(GreenContextView& session, Command& command,
                             codec::Slots<calls::gpContextRecordEvent>& slots) {
    using Call = calls::gpContextRecordEvent;
    if (serve_later(session, command)) {
        return Outcome::answered();
    }
    ContextState* const context = session.objects.context(slots.at<Call::context>().value);
    const CUevent client = slots.at<Call::event>().value;
    const EventState* const known = session.objects.event(client);
    if (context == nullptr || context->ending) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (known == nullptr || known->context != &context->owner()) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    std::shared_ptr<EventState> event;
    if (const CUresult result = event_to_record(session, command, client, 0, context->legacy, event);
        result != CUDA_SUCCESS) {
        return result;
    }
    event->latched = context->legacy.latched;
    const Submission permit = session.gate.of_context(*context);
    return context->green != nullptr
               ? driver::call(permit, session.api.cuGreenCtxRecordEvent, context->green, event->driver)
               : driver::call(permit, session.api.cuCtxRecordEvent, context->driver, event->driver);
}

Outcome gpContextWaitEvent(GreenContextView& session, Command& command,
                           codec::Slots<calls::gpContextWaitEvent>& slots) {
    using Call = calls::gpContextWaitEvent;
    if (serve_later(session, command)) {
        return Outcome::answered();
    }
    ContextState* const context = session.objects.context(slots.at<Call::context>().value);
    const EventState* const event = session.objects.event(slots.at<Call::event>().value);
    if (context == nullptr || context->ending) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (event == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    const Submission permit = session.gate.of_context(*context);
    return context->green != nullptr
               ? driver::call(permit, session.api.cuGreenCtxWaitEvent, context->green, event->driver)
               : driver::call(permit, session.api.cuCtxWaitEvent, context->driver, event->driver);
}

}  // namespace gpupool::worker::handlers
