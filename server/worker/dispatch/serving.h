// What handlers share: the outcome of a call, entries of the gate that stand for a command, and the way into the gate.
//
// Threads: the dispatcher's.
// Errors: in the outcome.
#pragma once

#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "protocol/calls/table.h"
#include "protocol/codec/reply.h"
#include "server/worker/dispatch/outputs.h"
#include "server/worker/dispatch/views.h"

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
CUresult driver_handle(const SessionView& session, Handle& handle) {
    const HandleTable::Lookup found = session.handles.find(handle);
    if (found.found != HandleTable::Found::yes || handle == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    handle = codec::from_wire<Handle>(found.driver);
    return CUDA_SUCCESS;
}

// An entry on behalf of a command, which is answered if the entry is abandoned.
template <class View>
class EntryOfCommand : public Entry {
  public:
    void abandon(CUresult result) override {
        if (command_.reply_wanted()) {
            session_.answers.give(command_, result);
        }
    }
    [[nodiscard]] std::string_view what() const override { return calls::name_of(command_.header.opcode); }

  protected:
    EntryOfCommand(View& session, Command command) : session_(session), command_(std::move(command)) {}

    View& session_;
    Command command_;
};

// A command that is dispatched when it leaves its queue. Its handler then gets the entry's submission from enter().
class QueuedCommand : public EntryOfCommand<SessionView> {
  public:
    // `ready`: it need not be checked again.
    QueuedCommand(SessionView& session, const Command& command, calls::Kind of_kind = calls::Kind::none,
                  bool ready = true)
        : EntryOfCommand(session, command) {
        kind = of_kind;
        command_.ready = ready;
        command_.keep_body(command_.reply_wanted() ? kWaitingCostBytes : kQueuedCostBytes);
        bytes += command_.body.size();
    }
    Reason advance() override {
        command_.waited_for = waited_for();
        session_.gate.admit(std::exchange(submission, std::nullopt));
        session_.commands.dispatch(command_);
        return Reason::none;
    }
};

// Dispatches the command once everything that is queued now has been issued.
inline Outcome serve_after_all(SessionView& session, const Command& command) {
    session.gate.after_all(std::make_unique<QueuedCommand>(session, command));
    return Outcome::answered();
}

// The right to give `stream` the work of a command. Empty if the command was queued.
template <class Call>
std::optional<Submission> enter(SessionView& session, const Command& command, StreamState& stream) {
    std::optional<Submission> submission = session.gate.enter(stream, Call::kKind);
    if (!submission) {
        session.gate.queue(stream, std::make_unique<QueuedCommand>(session, command, Call::kKind));
    }
    return submission;
}

// The same for the stream that `handle` means. If `submission` stays empty, the outcome is to be returned: the command
// was queued, or there is no such stream.
template <class Call>
Outcome enter(SessionView& session, Command& command, CUstream handle, std::optional<Submission>& submission) {
    CUresult result = CUDA_SUCCESS;
    StreamState* const stream = session.stream_of(command, handle, result);
    if (stream == nullptr) {
        return result;
    }
    submission = enter<Call>(session, command, *stream);
    return Outcome::answered();
}

// The same for a command that records the event (`use`: Entry::records_event) or waits for it (Entry::names). A command
// that is queued means the event's state of now, and goes behind its queued record.
template <class Call>
std::optional<Submission> enter_event(SessionView& session, Command& command, StreamState& stream,
                                      const std::shared_ptr<EventState>& event,
                                      void (Entry::*use)(std::shared_ptr<EventState>)) {
    std::optional<Submission> submission;
    if (command.ready || event->queued_record == 0) {
        submission = session.gate.enter(stream, Call::kKind);
    }
    if (!submission) {
        command.events = {event};
        auto entry = std::make_unique<QueuedCommand>(session, command, Call::kKind);
        ((*entry).*use)(event);
        session.gate.queue(stream, std::move(entry));
    }
    return submission;
}

// Translates the client's handles to the driver's. Streams are special: NULL and 2 depend on the command.
struct Translator {
    SessionView& session;
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
            StreamState* state = session.stream_of(command, value, result);
            if (state == nullptr) {
                silent = session.handles.find(value).found == HandleTable::Found::creation_failed;
                return;
            }
            if (stream == nullptr) {
                stream = state;
            }
            value = state->driver;
        } else {
            const HandleTable::Lookup found = session.handles.find(value);
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

template <class Call>
inline constexpr bool does_synchronize = calls::has_rule(Call::kRules, calls::Rule::synchronizes);

// Binds or fails the handles that the call creates, and answers the command with its outputs.
template <class Call>
void finish(SessionView& session, Command& command, codec::Slots<Call>& slots, CUresult result) {
    if (result == CUDA_SUCCESS) {
        slots.each([&](auto& slot) { outputs_to_client(session.handles, slot); });
    } else {
        slots.each([&](auto& slot) {
            if (slot.minted != 0) {
                session.handles.bind_failed(slot.minted);
            }
        });
    }
    if (!command.reply_wanted() || result != CUDA_SUCCESS || !codec::any_output<Call>) {
        session.answers.give(command, result, does_synchronize<Call>);
        return;
    }
    session.answers.give(command, result, does_synchronize<Call>, codec::reply_bytes<Call>(slots),
                         [&](std::byte* place) {
                             codec::Writer out(place);
                             codec::write_reply<Call>(out, slots);
                         });
}

}  // namespace gpupool::worker
