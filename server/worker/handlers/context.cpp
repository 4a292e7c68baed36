// Contexts: made and destroyed on helper threads. The dispatcher knows a context before the client gets the reply.

#include "server/worker/dispatch/serve.h"
#include "server/worker/handlers/contexts.h"
#include "server/worker/scheduling/capture.h"

namespace gpupool::worker::handlers {
namespace {

struct Made {
    CUresult result = CUDA_SUCCESS;
    CUcontext context = nullptr;
    DriverMemory::Limits limits;
};

ContextState& know_context(Worker& worker, CUcontext client, CUcontext driver, CUdevice device, bool primary) {
    std::unique_ptr<ContextState>& state = worker.objects.contexts[client];
    if (state == nullptr) {
        state = std::make_unique<ContextState>();
    }
    state->client = client;
    state->driver = driver;
    state->device = device;
    state->number = ++worker.objects.contexts_made;
    state->primary = primary;
    state->lost = state->latched = state->latched_by_ended = CUDA_SUCCESS;
    state->ending = false;
    state->legacy.context = state.get();
    state->legacy.legacy = true;
    worker.handles.bind(client, driver);
    return *state;
}

}  // namespace

std::size_t forget_context(Worker& worker, ContextState& context) {
    std::size_t captures = 0;
    worker.issuers.forget_contexts();
    context.each_stream([&](StreamState& stream) {
        worker.gate.forget(stream, CUDA_ERROR_CONTEXT_IS_DESTROYED);
        captures += stream.began_capture ? 1 : 0;
    });
    std::erase_if(worker.host_functions, [&](const auto& entry) { return entry.second.context == &context; });
    for (const auto& [handle, stream] : context.streams) {
        worker.handles.unbind(codec::to_wire(handle));
    }
    for (const auto& [handle, event] : worker.objects.events) {
        if (event->context == &context) {
            worker.handles.unbind(codec::to_wire(handle));
        }
    }
    worker.gate.forget_events(worker.objects, context);
    worker.handles.unbind(codec::to_wire(context.client));
    worker.tracer.forget(context);
    worker.memory.forget_arrays(context);
    worker.memory.driver.forget(context);
    worker.memory.code.forget(context);
    worker.scheduler.enter(nullptr);
    if (context.parent != nullptr) {
        std::erase(context.parent->greens, &context);
    }
    for (ContextState* const green : context.greens) {
        green->parent = nullptr;
    }
    worker.objects.contexts.erase(CUcontext{context.client});  // a copy: erasing destroys the original
    return captures;
}

void make_context(Worker& worker, const Command& command, ContextMaking making) {
    if (!worker.objects.context_fits(making.green)) {
        worker.answer(command, CUDA_ERROR_OUT_OF_MEMORY);
        return;
    }
    DeviceMemory& memory = worker.memory;
    const std::uint64_t bytes = making.green ? 0 : memory.driver.needed_for_context(making.device);
    if (bytes != 0 && !memory.charge(worker.api, making.device, bytes)) {
        worker.answer(command, CUDA_ERROR_OUT_OF_MEMORY);
        return;
    }
    if (!making.green) {
        memory.driver.begin_context(making.device);
    }
    ++worker.objects.contexts_in_making;
    const auto made = std::make_shared<Made>();
    worker.helpers.run(
        [&api = worker.api, made, make = making.make, green = making.green] {
            made->result = make(&made->context);
            if (made->result == CUDA_SUCCESS && !green) {
                in_context(api, made->context, [&] {
                    made->limits = DriverMemory::read_limits(api);
                    return CUDA_SUCCESS;
                });
            }
        },
        [&worker, made, command, making] {
            --worker.objects.contexts_in_making;
            if (made->result != CUDA_SUCCESS && !making.green) {
                worker.memory.driver.end_context(making.device);
            }
            const auto again = [&worker, command, making] { make_context(worker, command, making); };
            if (made->result == CUDA_ERROR_OUT_OF_MEMORY && worker.give_back_prepared_context(again)) {
                return;
            }
            if (made->result == CUDA_SUCCESS) {
                ContextState& state = know_context(worker, making.client, made->context, making.device, making.primary);
                if (!making.green) {
                    worker.memory.driver.made(worker.api, state, std::move(made->limits));
                }
                if (making.known) {
                    making.known(state);
                }
                worker.give_back_prepared_context([] {});  // the session's first context is another
            }
            worker.answer(command, made->result);
        });
}

void end_context(Worker& worker, const Command& command, CUcontext client, std::function<CUresult()> end) {
    ContextState* const state = worker.objects.context(client);
    state->ending = true;
    const CUcontext driver = state->driver;
    worker.gate.after_all([&worker, command, client, driver, end = std::move(end)] {
        worker.staging.withhold();
        ContextState* const context = worker.objects.context(client);
        const std::size_t captures = context == nullptr ? 0 : forget_context(worker, *context);
        const auto withheld = std::make_shared<Staging::Withheld>();
        auto start = [&worker, command, client, driver, end, withheld, captures] {
            const auto result = std::make_shared<CUresult>(CUDA_SUCCESS);
            worker.waiting_calls.run([result, end] { *result = end(); },
                                     [&worker, command, client, driver, result, withheld, captures] {
                                         worker.staging.ended(driver, *withheld);
                                         worker.host_mirrors.release_of(client);
                                         worker.pinned.forget(driver);
                                         worker.word_memory.forget(driver);
                                         // Streams of other contexts may have joined those captures.
                                         worker.gate.when_open([&worker, captures] {
                                             note_captures(worker);
                                             worker.captures -= captures;
                                         });
                                         worker.answer(command, *result);
                                     });
        };
        // Posted as a job, so that `withheld` is assigned before it runs.
        *withheld = worker.staging.release(driver, [&worker, start = std::move(start)] { worker.inbox.post(start); });
    });
}

Outcome cuDevicePrimaryCtxRetain(Worker& worker, Command& command,
                                 codec::Slots<calls::cuDevicePrimaryCtxRetain>& slots) {
    using Call = calls::cuDevicePrimaryCtxRetain;
    const auto client = codec::from_wire<CUcontext>(slots.at<Call::pctx>().minted);
    const CUdevice device = slots.at<Call::dev>().value;
    if (codec::kind_of(codec::to_wire(client)) != codec::HandleKind::context) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (worker.objects.context(client) != nullptr || worker.objects.primary(device) != nullptr) {
        return CUDA_ERROR_INVALID_VALUE;  // the client counts references and retains only once
    }
    const driver::Api& api = worker.api;
    make_context(worker, command,
                 {client, device, true, false,
                  [&api, device, prepared = worker.take_prepared_context(device)](CUcontext* context) {
                      *context = prepared;
                      return prepared != nullptr ? CUDA_SUCCESS
                                                 : driver::call(api.cuDevicePrimaryCtxRetain, context, device);
                  }});
    return Outcome::answered();
}

Outcome gpPrimaryContextEnd(Worker& worker, Command& command, codec::Slots<calls::gpPrimaryContextEnd>& slots) {
    using Call = calls::gpPrimaryContextEnd;
    const CUcontext client = slots.at<Call::context>().value;
    const CUdevice device = slots.at<Call::device>().value;
    const bool reset = slots.at<Call::reset>().value != 0;
    const ContextState* state = worker.objects.context(client);
    if (state == nullptr || !state->primary || state->ending || state->device != device) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    const driver::Api& api = worker.api;
    end_context(worker, command, client, [&api, device, reset] {
        const CUresult result = reset ? driver::call(api.cuDevicePrimaryCtxReset_v2, device) : CUDA_SUCCESS;
        const CUresult released = driver::call(api.cuDevicePrimaryCtxRelease_v2, device);
        return result != CUDA_SUCCESS ? result : released;
    });
    return Outcome::answered();
}

Outcome gpContextCreate(Worker& worker, Command& command, codec::Slots<calls::gpContextCreate>& slots) {
    using Call = calls::gpContextCreate;
    const auto client = codec::from_wire<CUcontext>(slots.at<Call::context>().minted);
    const unsigned flags = slots.at<Call::flags>().value;
    const CUdevice device = slots.at<Call::device>().value;
    std::vector<CUexecAffinityParam> affinities = slots.at<Call::affinities>().object;
    if (codec::kind_of(codec::to_wire(client)) != codec::HandleKind::context ||
        worker.objects.context(client) != nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const driver::Api& api = worker.api;
    const auto make = [&api, flags, device, affinities](CUcontext* context) mutable {
        CUresult result = CUDA_SUCCESS;
        if (affinities.empty()) {
            result = driver::call(api.cuCtxCreate_v2, context, flags, device);
        } else {
            result = driver::call(api.cuCtxCreate_v3, context, affinities.data(), static_cast<int>(affinities.size()),
                                  flags, device);
        }
        if (result == CUDA_SUCCESS) {
            CUcontext popped = nullptr;
            driver::call(api.cuCtxPopCurrent_v2, &popped);
        }
        return result;
    };
    make_context(worker, command, {client, device, false, false, make});
    return Outcome::answered();
}

Outcome gpContextDestroy(Worker& worker, Command& command, codec::Slots<calls::gpContextDestroy>& slots) {
    using Call = calls::gpContextDestroy;
    const CUcontext client = slots.at<Call::context>().value;
    const ContextState* state = worker.objects.context(client);
    if (state == nullptr || state->primary || state->ending) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    const driver::Api& api = worker.api;
    const CUcontext context = state->driver;
    end_context(worker, command, client, [&api, context] { return driver::call(api.cuCtxDestroy_v2, context); });
    return Outcome::answered();
}

Outcome gpContextSynchronize(Worker& worker, Command& command, codec::Slots<calls::gpContextSynchronize>& slots) {
    using Call = calls::gpContextSynchronize;
    ContextState* state = worker.objects.context(slots.at<Call::context>().value);
    if (state == nullptr) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    command.waits_for = state->client;
    worker.gate.when_complete(*state, [&worker, command](CUresult result) { worker.answer(command, result, true); });
    return Outcome::answered();
}

Outcome gpContextWait(Worker& worker, Command& command, codec::Slots<calls::gpContextWait>& slots) {
    using Call = calls::gpContextWait;
    ContextState* const state = worker.objects.context(slots.at<Call::context>().value);
    if (state == nullptr) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    worker.gate.when_complete(*state, [&worker, command, client = state->client](CUresult result) {
        const ContextState* const now = worker.objects.context(client);
        worker.answer(command, now == nullptr ? result : now->result_to_notify(result));
    });
    return Outcome::answered();
}

// The memory of a greater limit is charged before the driver takes it, that of a smaller one released afterwards.
Outcome cuCtxSetLimit(Worker& worker, Command& command, codec::Slots<calls::cuCtxSetLimit>& slots) {
    using Call = calls::cuCtxSetLimit;
    const auto limit = slots.at<Call::limit>().value;
    const std::size_t value = slots.at<Call::value>().value;
    const ContextState* const context = worker.context_of(command);
    if (context == nullptr) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (limit == CU_LIMIT_PERSISTING_L2_CACHE_SIZE) {
        return CUDA_ERROR_UNSUPPORTED_LIMIT;  // it is the whole device's, and so other sessions' too
    }
    DeviceMemory& memory = worker.memory;
    const std::uint64_t needed = memory.driver.needed_bytes(*context, limit, value);
    const std::uint64_t counted = memory.driver.counted_bytes(*context, limit);
    if (needed > counted) {
        if (!memory.charge(worker.api, context->device, needed - counted)) {
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        memory.driver.count(*context, limit, needed);
    }
    const auto result = std::make_shared<CUresult>(CUDA_SUCCESS);
    worker.waiting_calls.run(
        [&api = worker.api, driver = context->driver, limit, value, result] {
            *result = in_context(api, driver, [&] { return driver::call(api.cuCtxSetLimit, limit, value); });
        },
        [&worker, command, limit, needed, counted, client = context->client, result] {
            const ContextState* const still = worker.objects.context(client);
            if (still != nullptr && (*result == CUDA_SUCCESS) == (needed < counted)) {
                worker.memory.driver.count(*still, limit, std::min(needed, counted));
            }
            worker.memory_changed();
            worker.answer(command, *result);
        });
    return Outcome::answered();
}

Outcome cuCtxEnablePeerAccess(Worker& worker, Command& command, codec::Slots<calls::cuCtxEnablePeerAccess>& slots) {
    using Call = calls::cuCtxEnablePeerAccess;
    ContextState* own = worker.context_of(command);
    ContextState* peer = worker.objects.context(slots.at<Call::peerContext>().value);
    if (own == nullptr || peer == nullptr) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    worker.scheduler.enter(own);
    const CUresult result = driver::call(worker.api.cuCtxEnablePeerAccess, peer->driver, slots.at<Call::Flags>().value);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    // Slabs are VMM memory, which the call above does not cover.
    share_slabs(worker.api, worker.memory, peer->device, own->device, true);
    return CUDA_SUCCESS;
}

Outcome cuCtxDisablePeerAccess(Worker& worker, Command& command, codec::Slots<calls::cuCtxDisablePeerAccess>& slots) {
    using Call = calls::cuCtxDisablePeerAccess;
    ContextState* own = worker.context_of(command);
    ContextState* peer = worker.objects.context(slots.at<Call::peerContext>().value);
    if (own == nullptr || peer == nullptr) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    worker.scheduler.enter(own);
    const CUresult result = driver::call(worker.api.cuCtxDisablePeerAccess, peer->driver);
    if (result == CUDA_SUCCESS) {
        share_slabs(worker.api, worker.memory, peer->device, own->device, false);
    }
    return result;
}

}  // namespace gpupool::worker::handlers
