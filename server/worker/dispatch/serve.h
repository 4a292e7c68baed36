// From a command's bytes to the driver call, derived from the call table.
//
// A call without the rule `served` is derived entirely: this code reads its arguments, translates handles, queues it at
// the gate if its work may not go yet, calls the driver, translates the outputs back and sends them. A
// `served` call has a handler of the same name in server/worker/handlers/, which gets the decoded arguments.
#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "server/worker/dispatch/serving.h"

namespace gpupool::worker {

namespace detail {

// What kind of GPU work a derived call does; `command`: none that is traced.
constexpr codec::TraceKind traced_kind(std::string_view name) {
    return name.starts_with("cuMemset")   ? codec::TraceKind::memset
           : name.starts_with("cuMemcpy") ? codec::TraceKind::copy
                                          : codec::TraceKind::command;
}

}  // namespace detail

template <class Call>
inline constexpr bool is_after_queued = calls::has_rule(Call::kRules, calls::Rule::after_queued);

// Checks the handles that the client minted for what the call creates: of the right kind, new, and not too many.
template <class Call>
CUresult check_minted(const SessionView& session, codec::Slots<Call>& slots) {
    CUresult result = CUDA_SUCCESS;
    slots.each([&]<int Index>(codec::Slot<Call, Index>& slot) {
        using S = codec::Slot<Call, Index>;
        if constexpr (S::kind == codec::Shape::creates) {
            if (slot.minted != 0 && result == CUDA_SUCCESS) {
                result = session.handles.check_new(codec::handle_kind_of<typename S::Pointee>, slot.minted);
            }
        }
    });
    return result;
}

// The client's handle that the call destroys, or 0. Call before handles are translated.
template <class Call>
std::uint64_t destroyed_handle(codec::Slots<Call>& slots) {
    std::uint64_t handle = 0;
    slots.each([&]<int Index>(codec::Slot<Call, Index>& slot) {
        if constexpr (calls::rule_at<Call, Index>.rule == calls::Rule::destroys) {
            handle = codec::to_wire(slot.value);
        }
    });
    return handle;
}

template <class Call>
void serve_on_helper(SessionView& session, Command& command, std::shared_ptr<codec::Slots<Call>> slots,
                     std::uint64_t destroyed) {
    const CUcontext context = [&]() -> CUcontext {
        const ContextState* state = session.context_of(command);
        return state == nullptr ? nullptr : state->driver;
    }();
    if (destroyed != 0 && !session.begin_destroy(destroyed)) {  // a helper is destroying it already
        finish<Call>(session, command, *slots, CUDA_ERROR_INVALID_HANDLE);
        return;
    }
    const auto result = std::make_shared<CUresult>(CUDA_SUCCESS);
    const driver::Api& api = session.api;
    auto work = [&api, context, slots, result] {
        *result = in_context(api, context, [&] {
            return slots->apply(
                [&](auto... arguments) { return driver::call(driver::Member<Call>::get(api), arguments...); });
        });
    };
    auto done = [&session, command, slots, result, destroyed]() mutable {
        if (destroyed != 0) {
            session.end_destroy(destroyed, *result == CUDA_SUCCESS);
        }
        finish<Call>(session, command, *slots, *result);
    };
    auto start = [&session, work = std::move(work), done = std::move(done)] { session.waiting_calls.run(work, done); };
    if (destroyed != 0) {
        session.gate.after_all(std::move(start));  // queued work may still use it
    } else {
        start();
    }
}

template <class Call>
Outcome call_driver(SessionView& session, Command& command, codec::Slots<Call>& slots, StreamState* stream) {
    if constexpr (calls::in_stream_order<Call>) {
        CUresult result = CUDA_SUCCESS;
        stream = stream != nullptr ? stream : session.stream_of(command, nullptr, result);
        if (stream == nullptr) {
            return result;
        }
        const std::optional<Submission> submission = enter<Call>(session, command, *stream);
        if (!submission) {
            return Outcome::answered();
        }
        if (result = session.scheduler.enter(session.context_of(command)); result != CUDA_SUCCESS) {
            return result;
        }
        const auto call = [&] {
            return slots.apply([&](auto... arguments) {
                return driver::call(*submission, driver::Member<Call>::get(session.api), arguments...);
            });
        };
        if constexpr (constexpr auto kind = detail::traced_kind(Call::kName); kind != codec::TraceKind::command) {
            Tracer::Work work(session.tracer, *stream, kind);
            result = call();
            work.end(result);
        } else {
            result = call();
        }
        return result;
    } else {
        if (const CUresult result = session.scheduler.enter(session.context_of(command)); result != CUDA_SUCCESS) {
            return result;
        }
        return slots.apply(
            [&](auto... arguments) { return driver::call(driver::Member<Call>::get(session.api), arguments...); });
    }
}

// Reads a command's arguments. False if they are malformed; the command has been answered then.
template <class Call>
bool read_arguments(SessionView& session, Command& command, codec::Slots<Call>& slots) {
    if (!slots.read(command.body)) {
        session.answers.violation(command, "its arguments do not fit the call");
        return false;
    }
    if (const CUresult result = check_minted<Call>(session, slots); result != CUDA_SUCCESS) {
        session.answers.give(command, result);
        return false;
    }
    return true;
}

// The same for a call without a handler, with its handles translated. `stream`: the stream that it names, if any.
template <class Call>
bool read_and_translate(SessionView& session, Command& command, codec::Slots<Call>& slots, StreamState*& stream,
                        std::uint64_t& destroyed) {
    if (!read_arguments(session, command, slots)) {
        return false;
    }
    destroyed = destroyed_handle<Call>(slots);
    Translator translator{session, command};
    slots.each([&](auto& slot) { translator.in(slot); });
    stream = translator.stream;
    if (translator.result == CUDA_SUCCESS) {
        return true;
    }
    if (!translator.silent || command.reply_wanted()) {
        finish<Call>(session, command, slots, translator.result);
    }
    return false;
}

// Acts on a call's outcome. `destroyed`: the client's handle that it destroys, or 0.
template <class Call>
void conclude(SessionView& session, Command& command, codec::Slots<Call>& slots, std::uint64_t destroyed,
              Outcome outcome) {
    switch (outcome.verdict) {
        case Outcome::Verdict::answered: return;
        case Outcome::Verdict::done:
            if (outcome.result == CUDA_SUCCESS && destroyed != 0) {
                session.handles.unbind(destroyed);
            }
            finish<Call>(session, command, slots, outcome.result);
            return;
    }
}

template <class Call, class Handler>
void serve(SessionView& session, Command& command, Handler handler) {
    constexpr bool kBlocking = Call::kDelivery == calls::Delivery::blocking;
    if constexpr (is_after_queued<Call>) {
        if (!command.ready && session.gate.queues_any()) {
            serve_after_all(session, command);
            return;
        }
    }
    if constexpr (kBlocking) {
        // It is kept until it is answered.
        command.keep_body(command.reply_wanted() ? kWaitingCostBytes : kQueuedCopyCostBytes);
    }
    if constexpr (calls::is_served<Call>) {
        codec::Slots<Call> slots;
        if (read_arguments(session, command, slots)) {
            const std::uint64_t destroyed = destroyed_handle<Call>(slots);
            conclude<Call>(session, command, slots, destroyed, handler(slots));
        }
    } else {
        StreamState* stream = nullptr;
        std::uint64_t destroyed = 0;
        if constexpr (kBlocking) {
            auto slots = std::make_shared<codec::Slots<Call>>();
            if (read_and_translate(session, command, *slots, stream, destroyed)) {
                serve_on_helper<Call>(session, command, std::move(slots), destroyed);
            }
        } else {
            codec::Slots<Call> slots;
            if (read_and_translate(session, command, slots, stream, destroyed)) {
                conclude<Call>(session, command, slots, destroyed, call_driver<Call>(session, command, slots, stream));
            }
        }
    }
}

}  // namespace gpupool::worker
