// From a command's bytes to the driver call, derived from the call table.
//
// A call without the rule `served` is derived entirely: this code reads its arguments, translates handles, queues it at
// the gate if its work may not go yet, calls the driver, translates the outputs back and sends them. A
// `served` call has a handler of the same name in server/worker/handlers/, which gets the decoded arguments.
#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "protocol/calls/table.h"
#include "protocol/codec/reply.h"
#include "server/worker/dispatch/outputs.h"
#include "server/worker/dispatch/worker.h"

namespace gpupool::worker {

// The outcome of serving a command.
struct Outcome {
    enum class Verdict {
        done,      // `result` is the driver's; the outputs are in the slots
        answered,  // the handler has answered, or what it queued will answer
    };
    Verdict verdict = Verdict::done;
    CUresult result = CUDA_SUCCESS;

    Outcome(CUresult r) : result(r) {}
    static Outcome answered() {
        Outcome outcome(CUDA_SUCCESS);
        outcome.verdict = Verdict::answered;
        return outcome;
    }
};

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

// An entry on behalf of a command, which is answered if the entry is abandoned.
class EntryOfCommand : public Entry {
  public:
    void abandon(CUresult result) override {
        if (command_.reply_wanted()) {
            worker_.answer(command_, result);
        }
    }
    [[nodiscard]] std::string_view what() const override { return calls::name_of(command_.header.opcode); }

  protected:
    EntryOfCommand(Worker& worker, Command command) : worker_(worker), command_(std::move(command)) {}

    Worker& worker_;
    Command command_;
};

// A command that is dispatched when it leaves its queue. Its handler then gets the entry's submission from enter().
class QueuedCommand : public EntryOfCommand {
  public:
    // `ready`: it need not be checked again.
    QueuedCommand(Worker& worker, const Command& command, calls::Kind of_kind = calls::Kind::none, bool ready = true)
        : EntryOfCommand(worker, command) {
        kind = of_kind;
        command_.ready = ready;
        command_.keep_body(command_.reply_wanted() ? kWaitingCostBytes : kQueuedCostBytes);
        bytes += command_.body.size();
    }
    Reason advance() override {
        command_.waited_for = waited_for();
        worker_.gate.admit(std::exchange(submission, std::nullopt));
        worker_.dispatch(command_);
        return Reason::none;
    }
};

// Dispatches the command once everything that is queued now has been issued.
inline Outcome serve_after_all(Worker& worker, const Command& command) {
    worker.gate.after_all(std::make_unique<QueuedCommand>(worker, command));
    return Outcome::answered();
}

// The right to give `stream` the work of a command. Empty if the command was queued.
template <class Call>
std::optional<Submission> enter(Worker& worker, const Command& command, StreamState& stream) {
    std::optional<Submission> submission = worker.gate.enter(stream, Call::kKind);
    if (!submission) {
        worker.gate.queue(stream, std::make_unique<QueuedCommand>(worker, command, Call::kKind));
    }
    return submission;
}

// The same for the stream that `handle` means. If `submission` stays empty, the outcome is to be returned: the command
// was queued, or there is no such stream.
template <class Call>
Outcome enter(Worker& worker, Command& command, CUstream handle, std::optional<Submission>& submission) {
    CUresult result = CUDA_SUCCESS;
    StreamState* const stream = worker.stream_of(command, handle, result);
    if (stream == nullptr) {
        return result;
    }
    submission = enter<Call>(worker, command, *stream);
    return Outcome::answered();
}

// The same for a command that records the event (`use`: Entry::records_event) or waits for it (Entry::names). A command
// that is queued means the event's state of now, and goes behind its queued record.
template <class Call>
std::optional<Submission> enter_event(Worker& worker, Command& command, StreamState& stream,
                                      const std::shared_ptr<EventState>& event,
                                      void (Entry::*use)(std::shared_ptr<EventState>)) {
    std::optional<Submission> submission;
    if (command.ready || event->queued_record == 0) {
        submission = worker.gate.enter(stream, Call::kKind);
    }
    if (!submission) {
        command.events = {event};
        auto entry = std::make_unique<QueuedCommand>(worker, command, Call::kKind);
        ((*entry).*use)(event);
        worker.gate.queue(stream, std::move(entry));
    }
    return submission;
}

namespace handlers {
#define GP_CALL(op, symbol, ...) Outcome symbol(Worker&, Command&, codec::Slots<calls::symbol>&);
#define GP_PER_THREAD(...)
#include "protocol/calls/internal.def"
#include "protocol/calls/table.def"
#undef GP_CALL
#undef GP_PER_THREAD
}  // namespace handlers

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
inline constexpr bool is_after_queued = calls::has_rule(Call::kRules, calls::Rule::after_queued);
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
        worker.gate.after_all(std::move(start));  // queued work may still use it
    } else {
        start();
    }
}

template <class Call>
Outcome call_driver(Worker& worker, Command& command, codec::Slots<Call>& slots, StreamState* stream) {
    if constexpr (calls::in_stream_order<Call>) {
        CUresult result = CUDA_SUCCESS;
        stream = stream != nullptr ? stream : worker.stream_of(command, nullptr, result);
        if (stream == nullptr) {
            return result;
        }
        const std::optional<Submission> submission = enter<Call>(worker, command, *stream);
        if (!submission) {
            return Outcome::answered();
        }
        if (result = worker.scheduler.enter(worker.context_of(command)); result != CUDA_SUCCESS) {
            return result;
        }
        const auto call = [&] {
            return slots.apply([&](auto... arguments) {
                return driver::call(*submission, driver::Member<Call>::get(worker.api), arguments...);
            });
        };
        if constexpr (constexpr auto kind = detail::traced_kind(Call::kName); kind != codec::TraceKind::command) {
            Tracer::Work work(worker.tracer, *stream, kind);
            result = call();
            work.end(result);
        } else {
            result = call();
        }
        return result;
    } else {
        if (const CUresult result = worker.scheduler.enter(worker.context_of(command)); result != CUDA_SUCCESS) {
            return result;
        }
        return slots.apply(
            [&](auto... arguments) { return driver::call(driver::Member<Call>::get(worker.api), arguments...); });
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
    }
}

template <class Call, class Handler>
void serve(Worker& worker, Command& command, Handler handler) {
    constexpr bool kBlocking = Call::kDelivery == calls::Delivery::blocking;
    if constexpr (is_after_queued<Call>) {
        if (!command.ready && worker.gate.queues_any()) {
            serve_after_all(worker, command);
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
