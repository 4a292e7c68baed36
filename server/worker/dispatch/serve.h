// From a command's bytes to the driver call, derived from the call table.
//
// A call without the rule `served` is derived entirely: this code reads its arguments, translates handles, holds it
// until it is ready if it works in stream order, calls the driver, translates the outputs back and sends them. A
// `served` call has a handler of the same name in server/worker/handlers/, which gets the decoded arguments.
#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "protocol/codec/reply.h"
#include "server/worker/dispatch/outputs.h"
#include "server/worker/dispatch/worker.h"

namespace gpupool::worker {

// The outcome of serving a command.
struct Outcome {
    enum class Verdict {
        done,      // `result` is the driver's; the outputs are in the slots
        hold,      // to be queued in `stream`: `operation`, or the command itself if that is null
        answered,  // the handler has answered or will answer
    };
    Verdict verdict = Verdict::done;
    CUresult result = CUDA_SUCCESS;
    StreamState* stream = nullptr;
    std::unique_ptr<Operation> operation;

    Outcome(CUresult r) : result(r) {}
    Outcome(Verdict v, StreamState* s = nullptr) : verdict(v), stream(s) {}
    static Outcome hold(StreamState& stream) { return {Verdict::hold, &stream}; }
    static Outcome hold(StreamState& stream, std::unique_ptr<Operation> operation) {
        Outcome outcome(Verdict::hold, &stream);
        outcome.operation = std::move(operation);
        return outcome;
    }
    static Outcome answered() { return {Verdict::answered}; }
};

// Empty if the command is ready in `stream`; else the outcome to return.
inline std::optional<Outcome> check_ready(Worker& worker, Command& command, StreamState& stream) {
    if (!command.ready && !worker.scheduler.may_issue(stream)) {
        return Outcome::hold(stream);
    }
    return std::nullopt;
}

// The same for the stream that `handle` means, which is stored in `stream`. Returns an error if there is no such
// stream.
inline std::optional<Outcome> check_ready(Worker& worker, Command& command, CUstream handle, StreamState*& stream) {
    CUresult result = CUDA_SUCCESS;
    stream = worker.stream_of(command, handle, result);
    if (stream == nullptr) {
        return result;
    }
    return check_ready(worker, command, *stream);
}

// Translates a client's handle of a library, function and the like to the driver's. A kernel's handle may stand for its
// function.
template <class Handle>
CUresult driver_handle(const Worker& worker, Handle& handle) {
    const HandleTable::Lookup found = worker.handles.find(handle);
    if (found.found != HandleTable::Found::yes || handle == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    handle = codec::from_wire<Handle>(found.driver);
    return CUDA_SUCCESS;
}

// A copy of the command to dispatch later, with a body of its own.
inline Command kept(const Command& command) {
    Command later = command;
    later.keep_body(command.reply_wanted() ? kWaitingCostBytes : kHeldCostBytes);
    later.ready = true;
    return later;
}

// Dispatches the command once everything that is held now has been issued.
inline void serve_when_issued(Worker& worker, const Command& command) {
    worker.scheduler.when_issued([&worker, later = kept(command)]() mutable { worker.dispatch(later); });
}

namespace handlers {
#define GP_CALL(op, symbol, ...) Outcome symbol(Worker&, Command&, codec::Slots<calls::symbol>&);
#define GP_PER_THREAD(...)
#include "protocol/calls/internal.def"
#include "protocol/calls/table.def"
#undef GP_CALL
#undef GP_PER_THREAD
}  // namespace handlers

// An operation that a stream holds on behalf of a command. The command is answered if the operation is abandoned.
class HeldForCommand : public Operation {
  public:
    void abandon(CUresult result) override {
        if (command_.reply_wanted()) {
            worker_.answer(command_, result);
        }
    }

  protected:
    HeldForCommand(Worker& worker, Command command) : worker_(worker), command_(std::move(command)) {}

    Worker& worker_;
    Command command_;
};

// Dispatches the held command itself when it is ready.
class HeldCommand final : public HeldForCommand {
  public:
    HeldCommand(Worker& worker, Command command) : HeldForCommand(worker, std::move(command)) {
        command_.ready = true;
        command_.keep_body(kHeldCostBytes);
        bytes += command_.body.size();
    }
    bool advance() override {
        if (rest_ == nullptr) {
            worker_.dispatch(command_);
            rest_ = worker_.take_rest();
        }
        return rest_ == nullptr || rest_->advance();
    }
    void abandon(CUresult result) override {
        if (rest_ != nullptr) {
            rest_->abandon(result);
        } else {
            HeldForCommand::abandon(result);
        }
    }

  private:
    std::unique_ptr<Operation> rest_;  // set if issuing it takes more than one call
};

namespace detail {

// What kind of GPU work a derived call does; `command`: none that is traced.
constexpr codec::TraceKind traced_kind(std::string_view name) {
    return name.starts_with("cuMemset")   ? codec::TraceKind::memset
           : name.starts_with("cuMemcpy") ? codec::TraceKind::copy
                                          : codec::TraceKind::command;
}

// Translates the client's handles to the driver's. Streams are special: NULL and 2 depend on the command.
struct Translator {
    Worker& worker;
    Command& command;
    CUresult result = CUDA_SUCCESS;
    bool silent = false;  // a handle's creation failed, which was reported already
    StreamState* stream = nullptr;

    template <class Handle>
    void handle(Handle& value) {
        if (result != CUDA_SUCCESS) {
            return;
        }
        if constexpr (std::is_same_v<Handle, CUstream>) {
            StreamState* state = worker.stream_of(command, value, result);
            if (state == nullptr) {
                silent = worker.handles.find(value).found == HandleTable::Found::creation_failed;
                return;
            }
            if (stream == nullptr) {
                stream = state;
            }
            value = state->driver;
        } else {
            const HandleTable::Lookup found = worker.handles.find(value);
            if (found.found == HandleTable::Found::yes) {
                value = codec::from_wire<Handle>(found.driver);
            } else {
                silent = found.found == HandleTable::Found::creation_failed;
                result = std::is_same_v<Handle, CUcontext> ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_HANDLE;
            }
        }
    }

    template <class Call, int Index>
    void in(codec::Slot<Call, Index>& slot) {
        using S = codec::Slot<Call, Index>;
        if constexpr (S::kind == codec::Shape::value) {
            if constexpr (codec::is_handle<typename S::T>) {
                handle(slot.value);
            }
        } else if constexpr (S::kind == codec::Shape::in || S::kind == codec::Shape::inout) {
            if constexpr (codec::StructTraits<typename S::Pointee>::has_handles) {
                if (slot.value != nullptr) {
                    codec::StructTraits<typename S::Pointee>::visit(slot.object, [&](auto& h) { handle(h); });
                }
            }
        } else if constexpr (S::kind == codec::Shape::in_array) {
            if constexpr (codec::StructTraits<typename S::Pointee>::has_handles) {
                for (auto& element : slot.object) {
                    codec::StructTraits<typename S::Pointee>::visit(element, [&](auto& h) { handle(h); });
                }
            }
        }
    }
};

}  // namespace detail

template <class Call>
inline constexpr bool in_stream_order = calls::has_rule(Call::kRules, calls::Rule::stream_order);
template <class Call>
inline constexpr bool is_after_held = calls::has_rule(Call::kRules, calls::Rule::after_held);
template <class Call>
inline constexpr bool does_synchronize = calls::has_rule(Call::kRules, calls::Rule::synchronizes);

template <class Call>
void finish(Worker& worker, Command& command, codec::Slots<Call>& slots, CUresult result) {
    if (result == CUDA_SUCCESS) {
        slots.each([&](auto& slot) { outputs_to_client(worker.handles, slot); });
    } else {
        slots.each([&](auto& slot) {
            if (slot.minted != 0) {
                worker.handles.bind_failed(slot.minted);
            }
        });
    }
    if (!command.reply_wanted() || result != CUDA_SUCCESS || !codec::any_output<Call>) {
        worker.answer(command, result, does_synchronize<Call>);
        return;
    }
    worker.answer(command, result, does_synchronize<Call>, codec::reply_bytes<Call>(slots), [&](std::byte* place) {
        codec::Writer out(place);
        codec::write_reply<Call>(out, slots);
    });
}

// Checks the handles that the client minted for what the call creates: of the right kind, new, and not too many.
template <class Call>
CUresult check_minted(const Worker& worker, codec::Slots<Call>& slots) {
    CUresult result = CUDA_SUCCESS;
    slots.each([&]<int Index>(codec::Slot<Call, Index>& slot) {
        using S = codec::Slot<Call, Index>;
        if constexpr (S::kind == codec::Shape::creates) {
            if (slot.minted != 0 && result == CUDA_SUCCESS) {
                result = worker.handles.check_new(codec::handle_kind_of<typename S::Pointee>, slot.minted);
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
void serve_on_helper(Worker& worker, Command& command, std::shared_ptr<codec::Slots<Call>> slots,
                     std::uint64_t destroyed) {
    const CUcontext context = [&]() -> CUcontext {
        const ContextState* state = worker.context_of(command);
        return state == nullptr ? nullptr : state->driver;
    }();
    if (destroyed != 0 && !worker.begin_destroy(destroyed)) {  // a helper is destroying it already
        finish<Call>(worker, command, *slots, CUDA_ERROR_INVALID_HANDLE);
        return;
    }
    const auto result = std::make_shared<CUresult>(CUDA_SUCCESS);
    const driver::Api& api = worker.api;
    auto work = [&api, context, slots, result] {
        *result = in_context(api, context, [&] {
            return slots->apply(
                [&](auto... arguments) { return driver::call(driver::Member<Call>::get(api), arguments...); });
        });
    };
    auto done = [&worker, command, slots, result, destroyed]() mutable {
        if (destroyed != 0) {
            worker.end_destroy(destroyed, *result == CUDA_SUCCESS);
        }
        finish<Call>(worker, command, *slots, *result);
    };
    auto start = [&worker, work = std::move(work), done = std::move(done)] { worker.waiting_calls.run(work, done); };
    if (destroyed != 0) {
        worker.scheduler.when_issued(std::move(start));  // held work may still use it
    } else {
        start();
    }
}

template <class Call>
Outcome call_driver(Worker& worker, Command& command, codec::Slots<Call>& slots, StreamState* stream) {
    if constexpr (in_stream_order<Call>) {
        auto waiting =
            stream == nullptr ? check_ready(worker, command, nullptr, stream) : check_ready(worker, command, *stream);
        if (waiting) {
            return std::move(*waiting);
        }
    }
    if (const CUresult result = worker.scheduler.enter(worker.context_of(command)); result != CUDA_SUCCESS) {
        return result;
    }
    const auto call = [&] {
        return slots.apply(
            [&](auto... arguments) { return driver::call(driver::Member<Call>::get(worker.api), arguments...); });
    };
    if constexpr (in_stream_order<Call>) {
        CUresult result = CUDA_SUCCESS;
        if constexpr (constexpr auto kind = detail::traced_kind(Call::kName); kind != codec::TraceKind::command) {
            Tracer::Work work(worker.tracer, *stream, kind);
            result = call();
            work.end(result);
        } else {
            result = call();
        }
        worker.scheduler.issued(*stream);
        return result;
    } else {
        return call();
    }
}

// Reads a command's arguments. False if they are malformed; the command has been answered then.
template <class Call>
bool read_arguments(Worker& worker, Command& command, codec::Slots<Call>& slots) {
    if (!slots.read(command.body)) {
        worker.violation(command, "its arguments do not fit the call");
        return false;
    }
    if (const CUresult result = check_minted<Call>(worker, slots); result != CUDA_SUCCESS) {
        worker.answer(command, result);
        return false;
    }
    return true;
}

// The same for a call without a handler, with its handles translated. `stream`: the stream that it names, if any.
template <class Call>
bool read_and_translate(Worker& worker, Command& command, codec::Slots<Call>& slots, StreamState*& stream,
                        std::uint64_t& destroyed) {
    if (!read_arguments(worker, command, slots)) {
        return false;
    }
    destroyed = destroyed_handle<Call>(slots);
    detail::Translator translator{worker, command};
    slots.each([&](auto& slot) { translator.in(slot); });
    stream = translator.stream;
    if (translator.result == CUDA_SUCCESS) {
        return true;
    }
    if (!translator.silent || command.reply_wanted()) {
        finish<Call>(worker, command, slots, translator.result);
    }
    return false;
}

// Acts on a call's outcome. `destroyed`: the client's handle that it destroys, or 0.
template <class Call>
void conclude(Worker& worker, Command& command, codec::Slots<Call>& slots, std::uint64_t destroyed, Outcome outcome) {
    switch (outcome.verdict) {
        case Outcome::Verdict::answered: return;
        case Outcome::Verdict::done:
            if (outcome.result == CUDA_SUCCESS && destroyed != 0) {
                worker.handles.unbind(destroyed);
            }
            finish<Call>(worker, command, slots, outcome.result);
            return;
        case Outcome::Verdict::hold:
            if (command.ready) {
                worker.set_rest(std::move(outcome.operation));
                return;
            }
            if (outcome.operation == nullptr) {
                outcome.operation = std::make_unique<HeldCommand>(worker, command);
            }
            worker.scheduler.hold(*outcome.stream, std::move(outcome.operation));
            return;
    }
}

template <class Call, class Handler>
void serve(Worker& worker, Command& command, Handler handler) {
    constexpr bool kBlocking = Call::kDelivery == calls::Delivery::blocking;
    if constexpr (is_after_held<Call>) {
        if (!command.ready && worker.scheduler.holds_any()) {
            serve_when_issued(worker, command);
            return;
        }
    }
    if constexpr (kBlocking) {
        command.keep_body(kWaitingCostBytes);  // it is kept until it is answered
    }
    if constexpr (calls::is_served<Call>) {
        codec::Slots<Call> slots;
        if (read_arguments(worker, command, slots)) {
            const std::uint64_t destroyed = destroyed_handle<Call>(slots);
            conclude<Call>(worker, command, slots, destroyed, handler(worker, command, slots));
        }
    } else {
        StreamState* stream = nullptr;
        std::uint64_t destroyed = 0;
        if constexpr (kBlocking) {
            auto slots = std::make_shared<codec::Slots<Call>>();
            if (read_and_translate(worker, command, *slots, stream, destroyed)) {
                serve_on_helper<Call>(worker, command, std::move(slots), destroyed);
            }
        } else {
            codec::Slots<Call> slots;
            if (read_and_translate(worker, command, slots, stream, destroyed)) {
                conclude<Call>(worker, command, slots, destroyed, call_driver<Call>(worker, command, slots, stream));
            }
        }
    }
}

}  // namespace gpupool::worker
