// Contexts: made and destroyed on helper threads. The dispatcher knows a context before the client gets the reply.

#include "server/worker/dispatch/helpers.h"
#include "server/worker/dispatch/inbox.h"
#include "server/worker/handlers/contexts.h"
#include "server/worker/handlers/handlers.h"
#include "server/worker/memory/host_mirrors.h"
#include "server/worker/memory/pinned_memory.h"
#include "server/worker/scheduling/capture.h"
#include "server/worker/scheduling/issuers.h"
#include "server/worker/session/prepared_context.h"
#include "server/worker/transfers/staging.h"

namespace gpupool::worker::handlers {
namespace {

struct Made {
    CUresult result = CUDA_SUCCESS;
    CUcontext context = nullptr;
    DriverMemory::Limits limits;
};

ContextState& know_context(SessionView& session, CUcontext client, CUcontext driver, CUdevice device, bool primary) {
    std::unique_ptr<ContextState>& state = session.objects.contexts[client];
    if (state == nullptr) {
        state = std::make_unique<ContextState>();
    }
    state->client = client;
    state->driver = driver;
    state->device = device;
    state->number = ++session.objects.contexts_made;
    state->primary = primary;
    state->lost = state->latched = state->latched_by_ended = CUDA_SUCCESS;
    state->ending = false;
    state->legacy.context = state.get();
    state->legacy.legacy = true;
    session.handles.bind(client, driver);
    return *state;
}

}  // namespace

std::size_t forget_context(ContextView& session, ContextState& context) {
    std::size_t captures = 0;
    session.issuers.forget_contexts();
    context.each_stream([&](StreamState& stream) {
        session.gate.forget(stream, CUDA_ERROR_CONTEXT_IS_DESTROYED);
        captures += stream.began_capture ? 1 : 0;
    });
    std::erase_if(session.host_functions, [&](const auto& entry) { return entry.second.context == &context; });
    for (const auto& [handle, stream] : context.streams) {
        session.handles.unbind(codec::to_wire(handle));
    }
    for (const auto& [handle, event] : session.objects.events) {
        if (event->context == &context) {
            session.handles.unbind(codec::to_wire(handle));
        }
    }
    session.gate.forget_events(session.objects, context);
    session.handles.unbind(codec::to_wire(context.client));
    session.tracer.forget(context);
    session.memory.forget_arrays(context);
    session.memory.driver.forget(context);
    session.memory.code.forget(context);
    session.scheduler.enter(nullptr);
    if (context.parent != nullptr) {
        std::erase(context.parent->greens, &context);
    }
    for (ContextState* const green : context.greens) {
        green->parent = nullptr;
    }
    session.objects.contexts.erase(CUcontext{context.client});  // a copy: erasing destroys the original
    return captures;
}

void make_context(ContextView& session, const Command& command, ContextMaking making) {
    if (!session.objects.context_fits(making.green)) {
        session.answers.give(command, CUDA_ERROR_OUT_OF_MEMORY);
        return;
    }
    if (!making.green && !session.memory.charge_context(session.api, making.device)) {
        session.answers.give(command, CUDA_ERROR_OUT_OF_MEMORY);
        return;
    }
    ++session.objects.contexts_in_making;
    if (making.primary) {
        session.objects.primaries_in_making.insert(making.device);
    }
    const auto made = std::make_shared<Made>();
    session.helpers.run(
        [&api = session.api, made, make = making.make, green = making.green] {
            made->result = make(&made->context);
            if (made->result == CUDA_SUCCESS && !green) {
                in_context(api, made->context, [&] {
                    made->limits = DriverMemory::read_limits(api);
                    return CUDA_SUCCESS;
                });
            }
        },
        [&session, made, command, making] {
            --session.objects.contexts_in_making;
            if (making.primary) {
                session.objects.primaries_in_making.erase(making.device);
            }
            if (made->result != CUDA_SUCCESS && !making.green) {
                session.memory.driver.end_context(making.device);
            }
            const auto again = [&session, command, making] { make_context(session, command, making); };
            if (made->result == CUDA_ERROR_OUT_OF_MEMORY && session.prepared_context.give_back(again)) {
                return;
            }
            if (made->result == CUDA_SUCCESS) {
                ContextState& state =
                    know_context(session, making.client, made->context, making.device, making.primary);
                if (!making.green) {
                    session.memory.driver.made(session.api, state, std::move(made->limits));
                }
                if (making.known) {
                    making.known(state);
                }
                session.prepared_context.give_back([] {});  // the session's first context is another
            }
            session.answers.give(command, made->result);
        });
}

void end_context(ContextView& session, const Command& command, CUcontext client, std::function<CUresult()> end) {
    ContextState* const state = session.objects.context(client);
    state->ending = true;
    const CUcontext driver = state->driver;
    session.gate.after_all([&session, command, client, driver, end = std::move(end)] {
        session.staging.withhold();
        ContextState* const context = session.objects.context(client);
        const std::size_t captures = context == nullptr ? 0 : forget_context(session, *context);
        const auto withheld = std::make_shared<Staging::Withheld>();
        auto start = [&session, command, client, driver, end, withheld, captures] {
            const auto result = std::make_shared<CUresult>(CUDA_SUCCESS);
            session.waiting_calls.run([result, end] { *result = end(); },
                                      [&session, command, client, driver, result, withheld, captures] {
                                          session.staging.ended(driver, *withheld);
                                          session.host_mirrors.release_of(client);
                                          session.pinned.forget(driver);
                                          session.word_memory.forget(driver);
                                          // Streams of other contexts may have joined those captures.
                                          session.gate.when_open([&session, captures] {
                                              note_captures(session);
                                              session.objects.captures -= captures;
                                          });
                                          session.answers.give(command, *result);
                                      });
        };
        // Posted as a job, so that `withheld` is assigned before it runs.
        *withheld =
            session.staging.release(driver, [&session, start = std::move(start)] { session.inbox.post(start); });
    });
}

Outcome cuDevicePrimaryCtxRetain(ContextView& session, Command& command,
                                 codec::Slots<calls::cuDevicePrimaryCtxRetain>& slots) {
    using Call = calls::cuDevicePrimaryCtxRetain;
    const auto client = codec::from_wire<CUcontext>(slots.at<Call::pctx>().minted);
    const CUdevice device = slots.at<Call::dev>().value;
    if (codec::kind_of(codec::to_wire(client)) != codec::HandleKind::context) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (session.objects.context(client) != nullptr || session.objects.primary(device) != nullptr ||
        session.objects.primaries_in_making.contains(device)) {
        return CUDA_ERROR_INVALID_VALUE;  // the client counts references and retains only once
    }
    const driver::Api& api = session.api;
    make_context(session, command,
                 {client, device, true, false,
                  [&api, device, prepared = session.prepared_context.take(device)](CUcontext* context) {
                      *context = prepared;
                      return prepared != nullptr ? CUDA_SUCCESS
                                                 : driver::call(api.cuDevicePrimaryCtxRetain, context, device);
                  }});
    return Outcome::answered();
}

Outcome gpPrimaryContextEnd(ContextView& session, Command& command, codec::Slots<calls::gpPrimaryContextEnd>& slots) {
    using Call = calls::gpPrimaryContextEnd;
    const CUcontext client = slots.at<Call::context>().value;
    const CUdevice device = slots.at<Call::device>().value;
    const bool reset = slots.at<Call::reset>().value != 0;
    const ContextState* state = session.objects.context(client);
    if (state == nullptr || !state->primary || state->ending || state->device != device) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    const driver::Api& api = session.api;
    end_context(session, command, client, [&api, device, reset] {
        const CUresult result = reset ? driver::call(api.cuDevicePrimaryCtxReset_v2, device) : CUDA_SUCCESS;
        const CUresult released = driver::call(api.cuDevicePrimaryCtxRelease_v2, device);
        return result != CUDA_SUCCESS ? result : released;
    });
    return Outcome::answered();
}

Outcome gpContextCreate(ContextView& session, Command& command, codec::Slots<calls::gpContextCreate>& slots) {
    using Call = calls::gpContextCreate;
    const auto client = codec::from_wire<CUcontext>(slots.at<Call::context>().minted);
    const unsigned flags = slots.at<Call::flags>().value;
    const CUdevice device = slots.at<Call::device>().value;
    std::vector<CUexecAffinityParam> affinities = slots.at<Call::affinities>().object;
    if (codec::kind_of(codec::to_wire(client)) != codec::HandleKind::context ||
        session.objects.context(client) != nullptr) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const driver::Api& api = session.api;
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
    make_context(session, command, {client, device, false, false, make});
    return Outcome::answered();
}

Outcome gpContextDestroy(ContextView& session, Command& command, codec::Slots<calls::gpContextDestroy>& slots) {
    using Call = calls::gpContextDestroy;
    const CUcontext client = slots.at<Call::context>().value;
    const ContextState* state = session.objects.context(client);
    if (state == nullptr || state->primary || state->ending) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    const driver::Api& api = session.api;
    const CUcontext context = state->driver;
    end_context(session, command, client, [&api, context] { return driver::call(api.cuCtxDestroy_v2, context); });
    return Outcome::answered();
}

Outcome gpContextSynchronize(SessionView& session, Command& command, codec::Slots<calls::gpContextSynchronize>& slots) {
    using Call = calls::gpContextSynchronize;
    ContextState* state = session.objects.context(slots.at<Call::context>().value);
    if (state == nullptr) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    command.waits_for = state->client;
    session.gate.when_complete(*state,
                               [&session, command](CUresult result) { session.answers.give(command, result, true); });
    return Outcome::answered();
}

Outcome gpContextWait(SessionView& session, Command& command, codec::Slots<calls::gpContextWait>& slots) {
    using Call = calls::gpContextWait;
    ContextState* const state = session.objects.context(slots.at<Call::context>().value);
    if (state == nullptr) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    session.gate.when_complete(*state, [&session, command, client = state->client](CUresult result) {
        const ContextState* const now = session.objects.context(client);
        session.answers.give(command, now == nullptr ? result : now->result_to_notify(result));
    });
    return Outcome::answered();
}

namespace {

void change_next_limit(SessionView& session);

// The memory of a greater limit is charged before the driver takes it, that of a smaller one released afterwards.
void change_limit(SessionView& session, const Command& command, CUcontext client, CUlimit limit, std::size_t value) {
    const ContextState* const context = session.objects.context(client);
    const std::uint64_t needed = context == nullptr ? 0 : session.memory.driver.needed_bytes(*context, limit, value);
    const std::uint64_t counted = context == nullptr ? 0 : session.memory.driver.counted_bytes(*context, limit);
    if (context == nullptr || !session.memory.charge_limit(session.api, *context, limit, value)) {
        session.answers.give(command, context == nullptr ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_OUT_OF_MEMORY);
        change_next_limit(session);
        return;
    }
    const auto result = std::make_shared<CUresult>(CUDA_SUCCESS);
    session.waiting_calls.run(
        [&api = session.api, driver = context->driver, limit, value, result] {
            *result = in_context(api, driver, [&] { return driver::call(api.cuCtxSetLimit, limit, value); });
        },
        [&session, command, limit, needed, counted, client, result] {
            const std::uint64_t now = *result == CUDA_SUCCESS ? needed : counted;
            const ContextState* const still = session.objects.context(client);
            if (still != nullptr && now < std::max(needed, counted)) {
                session.memory.driver.count(*still, limit, now);
            }
            session.answers.give(command, *result);
            change_next_limit(session);
        });
}

// The first of the limit changes is over.
void change_next_limit(SessionView& session) {
    auto& changes = session.objects.limit_changes;
    changes.pop_front();
    if (!changes.empty()) {
        session.gate.when_open(changes.front());
    }
}

}  // namespace

// One change at a time, since the charge for each depends on the one before.
Outcome cuCtxSetLimit(SessionView& session, Command& command, codec::Slots<calls::cuCtxSetLimit>& slots) {
    using Call = calls::cuCtxSetLimit;
    const ContextState* const context = session.context_of(command);
    if (context == nullptr) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    const auto limit = slots.at<Call::limit>().value;
    if (limit == CU_LIMIT_PERSISTING_L2_CACHE_SIZE) {
        return CUDA_ERROR_UNSUPPORTED_LIMIT;  // it is the whole device's, and so other sessions' too
    }
    auto& changes = session.objects.limit_changes;
    changes.emplace_back([&session, command, client = context->client, limit, value = slots.at<Call::value>().value] {
        change_limit(session, command, client, limit, value);
    });
    if (changes.size() == 1) {
        const auto first = changes.front();  // a copy: a change that fails at once removes itself
        first();
    }
    return Outcome::answered();
}

Outcome cuCtxEnablePeerAccess(SessionView& session, Command& command,
                              codec::Slots<calls::cuCtxEnablePeerAccess>& slots) {
    using Call = calls::cuCtxEnablePeerAccess;
    ContextState* own = session.context_of(command);
    ContextState* peer = session.objects.context(slots.at<Call::peerContext>().value);
    if (own == nullptr || peer == nullptr) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    session.scheduler.enter(own);
    const CUresult result =
        driver::call(session.api.cuCtxEnablePeerAccess, peer->driver, slots.at<Call::Flags>().value);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    // Slabs are VMM memory, which the call above does not cover.
    share_slabs(session.api, session.memory, peer->device, own->device, true);
    return CUDA_SUCCESS;
}

Outcome cuCtxDisablePeerAccess(SessionView& session, Command& command,
                               codec::Slots<calls::cuCtxDisablePeerAccess>& slots) {
    using Call = calls::cuCtxDisablePeerAccess;
    ContextState* own = session.context_of(command);
    ContextState* peer = session.objects.context(slots.at<Call::peerContext>().value);
    if (own == nullptr || peer == nullptr) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    session.scheduler.enter(own);
    const CUresult result = driver::call(session.api.cuCtxDisablePeerAccess, peer->driver);
    if (result == CUDA_SUCCESS) {
        share_slabs(session.api, session.memory, peer->device, own->device, false);
    }
    return result;
}

}  // namespace gpupool::worker::handlers
