// The JIT linker. Its calls run on a thread of their own, since the driver compiles; calls on one linker state begin
// when those before them have been answered.

#include <utility>

#include "server/worker/handlers/handlers.h"
#include "server/worker/images/images.h"
#include "server/worker/images/jit_options.h"
#include "server/worker/images/linker.h"

namespace gpupool::worker::handlers {
namespace {

std::shared_ptr<LinkState> find_state(CodeView& session, CUlinkState client) {
    const auto it = session.linker.states.find(client);
    return it == session.linker.states.end() ? nullptr : it->second;
}

// Begins `call` once the calls before it on the same state have ended.
void after_earlier_calls(const std::shared_ptr<LinkState>& state, std::function<void()> call) {
    if (std::exchange(state->busy, true)) {
        state->calls_next.push_back(std::move(call));
    } else {
        call();
    }
}

// The call of the state has been answered: begins the next.
void begin_next_call(LinkState& state) {
    if (state.calls_next.empty()) {
        state.busy = false;
        return;
    }
    const std::function<void()> next = std::move(state.calls_next.front());
    state.calls_next.pop_front();
    next();
}

// Makes `call` on a helper thread in the state's context, then answers with the log and `output`, which is called on
// the dispatcher.
void run(CodeView& session, const Command& command, const std::shared_ptr<LinkState>& state, std::size_t log_bytes,
         std::function<CUresult(LinkState&)> call, std::function<std::uint64_t()> output) {
    const auto result = std::make_shared<CUresult>(CUDA_SUCCESS);
    auto work = [&api = session.api, state, result, call = std::move(call)] {
        *result = in_context(api, state->context, [&] { return call(*state); });
    };
    auto done = [&session, command, state, result, log_bytes, output = std::move(output)] {
        const std::uint64_t first = output();
        const std::string log = log_bytes == 0 ? std::string() : state->jit.log(log_bytes);
        const std::size_t body = 8 + 8 + codec::aligned(log.size());
        session.answers.give(command, *result, false, body, [&](std::byte* place) {
            codec::Writer out(place);
            out.value(first);
            out.value(std::uint64_t{log.size()});
            out.bytes(log.data(), log.size());
        });
        begin_next_call(*state);
    };
    after_earlier_calls(state,
                        [&session, work = std::move(work), done = std::move(done)] { session.linker.run(work, done); });
}

}  // namespace

Outcome gpLinkCreate(CodeView& session, Command& command, codec::Slots<calls::gpLinkCreate>& slots) {
    using Call = calls::gpLinkCreate;
    constexpr std::size_t kMaxStates = 1024;
    const auto client = codec::from_wire<CUlinkState>(slots.at<Call::state>().minted);
    const std::size_t log_bytes = slots.at<Call::log_bytes>().value;
    const ContextState* context = session.context_of(command);
    if (context == nullptr) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (log_bytes > kMaxLogBytes || session.linker.states.size() + session.linker.in_making >= kMaxStates) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!session.linker.start()) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    auto state = std::make_shared<LinkState>(
        LinkState{context->driver,
                  JitOptions(slots.at<Call::options>().object, slots.at<Call::option_values>().object, log_bytes)});
    if (!state->jit.valid) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    ++session.linker.in_making;
    const auto result = std::make_shared<CUresult>(CUDA_SUCCESS);
    const driver::Api& api = session.api;
    session.linker.run(
        [&api, state, result] {
            *result = in_context(api, state->context, [&] {
                return driver::call(api.cuLinkCreate_v2, static_cast<unsigned>(state->jit.options.size()),
                                    state->jit.options.data(), state->jit.values.data(), &state->driver);
            });
        },
        [&session, command, state, result, client] {
            --session.linker.in_making;
            if (*result == CUDA_SUCCESS) {
                session.linker.states[client] = state;
                session.handles.bind(client, state->driver);
            }
            session.answers.give(command, *result);
        });
    return Outcome::answered();
}

Outcome gpLinkAdd(CodeView& session, Command& command, codec::Slots<calls::gpLinkAdd>& slots) {
    using Call = calls::gpLinkAdd;
    const std::shared_ptr<LinkState> state = find_state(session, slots.at<Call::state>().value);
    if (state == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    const ImageHash* hash = slots.at<Call::hash>().value;
    const std::size_t bytes = slots.at<Call::bytes>().value;
    const std::size_t log_bytes = slots.at<Call::log_bytes>().value;
    if (hash == nullptr || log_bytes > kMaxLogBytes) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const char* given = slots.at<Call::name>().value;
    const driver::Api& api = session.api;
    const JitOptions options(slots.at<Call::options>().object, slots.at<Call::option_values>().object, 0);
    if (!options.valid) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const auto image = std::make_shared<ImageUse>(session.images.use(*hash));
    run(
        session, command, state, log_bytes,
        [&api, image, bytes, type = slots.at<Call::type>().value, name = std::string(given == nullptr ? "" : given),
         jit = options](LinkState& link) mutable {
            if (image->obtain() != ImageUse::Outcome::ready) {
                return image->outcome() == ImageUse::Outcome::wanted ? CUDA_SUCCESS : CUDA_ERROR_INVALID_IMAGE;
            }
            if (bytes > image->bytes()->size()) {
                return CUDA_ERROR_INVALID_VALUE;
            }
            link.inputs.push_back(image->bytes());
            return driver::call(api.cuLinkAddData_v2, link.driver, type, static_cast<void*>(image->bytes()->data()),
                                bytes, name.c_str(), static_cast<unsigned>(jit.options.size()), jit.options.data(),
                                jit.values.data());
        },
        [&session, image] {
            session.images.record_outcome(*image);
            return image->outcome() == ImageUse::Outcome::wanted ? 1u : 0u;
        });
    return Outcome::answered();
}

Outcome gpLinkComplete(CodeView& session, Command& command, codec::Slots<calls::gpLinkComplete>& slots) {
    using Call = calls::gpLinkComplete;
    const std::shared_ptr<LinkState> state = find_state(session, slots.at<Call::state>().value);
    const std::size_t log_bytes = slots.at<Call::log_bytes>().value;
    if (state == nullptr || log_bytes > kMaxLogBytes) {
        return state == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
    }
    const driver::Api& api = session.api;
    run(
        session, command, state, log_bytes,
        [&api](LinkState& link) {
            link.linked.clear();
            void* cubin = nullptr;
            std::size_t bytes = 0;
            const CUresult result = driver::call(api.cuLinkComplete, link.driver, &cubin, &bytes);
            if (result == CUDA_SUCCESS) {
                const auto* data = static_cast<const unsigned char*>(cubin);
                link.linked.assign(data, data + bytes);
            }
            return result;
        },
        [state] {
            if (!state->linked.empty()) {  // else it failed, and an earlier result can still be read
                state->result = std::exchange(state->linked, {});
            }
            return std::uint64_t{state->result.size()};
        });
    return Outcome::answered();
}

Outcome gpLinkRead(CodeView& session, Command&, codec::Slots<calls::gpLinkRead>& slots) {
    using Call = calls::gpLinkRead;
    const std::shared_ptr<LinkState> state = find_state(session, slots.at<Call::state>().value);
    const std::size_t offset = slots.at<Call::offset>().value;
    auto& room = slots.at<Call::data>().object;
    if (state == nullptr || offset > state->result.size() || room.empty() ||
        room.size() - 1 > state->result.size() - offset) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    std::memcpy(room.data(), state->result.data() + offset, room.size() - 1);
    return CUDA_SUCCESS;
}

Outcome gpLinkDestroy(CodeView& session, Command& command, codec::Slots<calls::gpLinkDestroy>& slots) {
    const CUlinkState client = slots.at<calls::gpLinkDestroy::state>().value;
    const std::shared_ptr<LinkState> state = find_state(session, client);
    if (state == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    session.linker.states.erase(client);
    command.keep_header(kWaitingCostBytes);
    after_earlier_calls(state, [&session, command, client, state] {
        const auto result = std::make_shared<CUresult>(CUDA_SUCCESS);
        session.linker.run(
            [&api = session.api, state, result] {
                // Without a context the driver damages its heap, if a unit did not fit. The context may have ended.
                static_cast<void>(driver::call(api.cuCtxSetCurrent, state->context));
                *result = driver::call(api.cuLinkDestroy, state->driver);
            },
            [&session, command, client, result] {
                session.handles.unbind(codec::to_wire(client));
                session.answers.give(command, *result);
            });
    });
    return Outcome::answered();
}

}  // namespace gpupool::worker::handlers
