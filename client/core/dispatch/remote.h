// Sends a call to the worker as its line in the call table says: a deferred call returns at once, any other waits for
// its reply.
//
// Threads: any except receiving threads, because replies and acknowledgements arrive through them.
// Errors: the result in the call's reply; kSessionLost if the session ends first. A later reply reports the error of a
// deferred call (ReplyHeader::deferred).
#pragma once

#include <algorithm>
#include <tuple>

#include "client/core/dispatch/unsupported.h"
#include "client/core/memory/mapped_memory.h"
#include "client/core/session/runtime.h"
#include "client/core/tracing/trace.h"
#include "client/error_text.h"
#include "protocol/codec/core_set.h"
#include "protocol/codec/reply.h"

namespace gpupool::client {

// Records a sticky error of a reply in the context. Returns `result`.
inline CUresult take_result(ContextState* context, CUresult result) {
    if (context != nullptr && is_sticky(result)) {
        context->lost = result;
    }
    return result;
}

// Sets `context` to the current one. Returns success if it is alive and not lost, else the error.
inline CUresult usable_context(ContextState*& context) {
    context = this_thread().current();
    if (context == nullptr) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (!context->live.load(std::memory_order_relaxed)) {
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    }
    return context->lost.load(std::memory_order_relaxed);
}

// Does the thread wait for the replies of deferred calls too?
inline bool waits_for_all_replies(const Session& session, const ThreadState& thread) {
    return session.synchronous || thread.wait_for_replies;
}

namespace detail {

// Calls that end a context are sent even if it is lost.
template <class Call>
inline constexpr bool ends_context =
    std::is_same_v<Call, calls::gpContextDestroy> || std::is_same_v<Call, calls::gpPrimaryContextEnd>;

// A new handle for a call's output. The application receives it only after the call has succeeded.
template <class Call, int Index>
struct Minted {
    static constexpr bool there = codec::shape<Call, Index> == codec::Shape::creates;
    using T = calls::ArgumentOf<Call, Index>;
    struct Nothing {};
    std::conditional_t<there, codec::PointeeOf<T>, Nothing> handle{};
    T given{};

    void prepare(Session& session, T& argument) {
        if constexpr (there) {
            given = argument;
            if (argument != nullptr) {
                handle =
                    codec::from_wire<codec::PointeeOf<T>>(session.mint(codec::handle_kind_of<codec::PointeeOf<T>>));
                // Callers that know the handle beforehand (a primary context's) pass it in.
                if (*argument != nullptr && keeps_given<Call>) {
                    handle = *argument;
                }
                argument = &handle;
            }
        }
    }
    void publish() {
        if constexpr (there) {
            if (given != nullptr) {
                *given = handle;
            }
        }
    }
    template <class C>
    static constexpr bool keeps_given =
        std::is_same_v<C, calls::cuDevicePrimaryCtxRetain> || std::is_same_v<C, calls::gpContextCreate> ||
        std::is_same_v<C, calls::gpGreenContextCreate>;
};

// The session, thread and context that a call is made in.
struct Caller {
    Session& session;
    ThreadState& thread;
    ContextState* context;  // may be null

    // Without a live context no later call would report a deferred error.
    [[nodiscard]] bool has_live_context() const {
        return context != nullptr && context->live.load(std::memory_order_relaxed);
    }
};

// May the thread make a call? `ends_context`: a call that is sent even if the context is lost.
inline CUresult admit(const Caller& caller, bool ends_context) {
    if (caller.thread.in_host_function) {
        return CUDA_ERROR_NOT_PERMITTED;
    }
    return caller.context == nullptr || ends_context ? CUDA_SUCCESS
                                                     : caller.context->lost.load(std::memory_order_relaxed);
}

// May a call give `stream` work, considering the captures under way?
inline CUresult admit_work(const Caller& caller, CUstream stream) {
    Captures& captures = caller.session.captures;
    return captures.any() ? captures.before_work(stream_key(stream), caller.context) : CUDA_SUCCESS;
}

template <class Call, class Sequence>
struct Sender;
template <class Call, int... Index>
struct Sender<Call, std::integer_sequence<int, Index...>> {
    static CUresult send(calls::ArgumentOf<Call, Index>... arguments) {
        CUresult result = CUDA_SUCCESS;
        Session* const s = session(result);
        if (s == nullptr) {
            return result;
        }
        ThreadState& thread = this_thread();
        const Caller caller{*s, thread, thread.current()};
        result = admit(caller, ends_context<Call>);
        if constexpr (!codec::is_core_call<Call>) {
            if (result == CUDA_SUCCESS && !s->agreement.has(Call::kOpcode)) [[unlikely]] {
                note_not_agreed(*s, Call::kOpcode);
                return CUDA_ERROR_NOT_SUPPORTED;
            }
        }
        if constexpr (kGivesWork) {
            if (result == CUDA_SUCCESS && !kEndsStream) {
                result = s->streams.check(stream_of(arguments...), caller.context, thread.per_thread_default);
            }
            if (result == CUDA_SUCCESS) {
                result = admit_work(caller, stream_of(arguments...));
            }
            if (result == CUDA_SUCCESS) {
                (give_argument(*s, arguments), ...);
                s->wait_for_stream(stream_of(arguments...));
            }
        }
        if (result != CUDA_SUCCESS) {
            return result;
        }
        if constexpr (kGivesWork || calls::has_rule(Call::kRules, calls::Rule::synchronizes)) {
            if (s->host_mirrors.any() || (s->memory.hidden_blocks() != 0 && s->host_mirrors.any_to_search())) {
                publish_host_memory(*s);
            }
        }
        std::tuple<Minted<Call, Index>...> minted;
        (std::get<Index>(minted).prepare(*s, arguments), ...);
        const void* const addresses[] = {static_cast<const void*>(&arguments)..., nullptr};
        result = transmit(caller, addresses);
        if (result == CUDA_SUCCESS) {
            (std::get<Index>(minted).publish(), ...);
        }
        return result;
    }

  private:
    static constexpr bool kGivesWork = calls::in_stream_order<Call>;
    static constexpr bool kEndsStream = calls::has_rule(Call::kRules, calls::Rule::destroys);  // not known any more

    // Sends the command and, unless it is deferred, waits for its reply.
    static CUresult transmit(const Caller& caller, codec::Arguments addresses) {
        const bool wait = Call::kDelivery != calls::Delivery::deferred ||
                          waits_for_all_replies(caller.session, caller.thread) || !caller.has_live_context();
        if (wait) {
            caller.thread.reply.expect(Call::kOpcode);
        }
        const std::size_t bytes = codec::command_bytes<Call>(addresses);
        const CUresult sent =
            caller.session.send(Call::kOpcode, kGivesWork ? Session::Gives::work : Session::Gives::nothing, wait, bytes,
                                [&](codec::Writer& out) { codec::write_command<Call>(out, addresses); });
        trace::add_bytes_sent(bytes);
        return sent != CUDA_SUCCESS || !wait ? sent : receive(caller, addresses);
    }

    static CUresult receive(const Caller& caller, codec::Arguments addresses) {
        Session& session = caller.session;
        ReplySlot::Reply& reply = [&]() -> ReplySlot::Reply& {
            const trace::Wait waiting(trace::For::reply);
            session.poll_for(caller.thread.reply);
            return caller.thread.reply.wait();
        }();
        session.print_new_output();
        trace::add_bytes_received(reply.body.size());
        if (reply.lost) {
            return kSessionLost;
        }
        CUresult result = error_text::from_peer(reply.header.result);
        // A failed call has outputs only if the server sends some anyway (the log of a JIT compilation).
        const bool outputs = result == CUDA_SUCCESS || !reply.body.empty();
        if (outputs && !codec::read_reply<Call>(reply.body, addresses) && result == CUDA_SUCCESS) {
            session.violation("a reply that does not match its call");
            return kSessionLost;
        }
        if (result == CUDA_SUCCESS) {
            result = error_text::from_peer(reply.header.deferred);
        }
        return take_result(reply.header.other_context == 0 ? caller.context : nullptr, result);
    }

    // A device address may be an address of pinned host memory.
    template <class T>
    static void give_argument(Session& s, const T& argument) {
        if constexpr (std::is_same_v<T, CUdeviceptr>) {
            give_to_gpu(s, argument);
        }
    }

    // The first stream parameter; the default stream if the call has none.
    static CUstream stream_of(const calls::ArgumentOf<Call, Index>&... arguments) {
        CUstream found = nullptr;
        bool is_found = false;
        (take_stream(arguments, found, is_found), ...);
        return found;
    }
    template <class T>
    static void take_stream(const T& argument, CUstream& found, bool& is_found) {
        if constexpr (std::is_same_v<T, CUstream>) {
            found = is_found ? found : argument;
            is_found = true;
        }
    }
};

}  // namespace detail

template <class Call, class... Given>
CUresult remote(Given... arguments) {
    static_assert(calls::is_remote<Call>, "this call does not travel");
    return detail::Sender<Call, codec::Indices<Call>>::send(arguments...);
}

// The answer to a query whose work is known to be incomplete: needs no round trip. `context`: its context, or null if
// the caller has checked that already.
inline CUresult pending_answer(const Session& session, const ContextState* context) {
    if (this_thread().in_host_function) {
        return CUDA_ERROR_NOT_PERMITTED;
    }
    if (session.lost()) {
        return kSessionLost;
    }
    const CUresult lost = context == nullptr ? CUDA_SUCCESS : context->lost.load(std::memory_order_relaxed);
    return lost != CUDA_SUCCESS ? lost : CUDA_ERROR_NOT_READY;
}

// The same for work that is known to be complete.
inline CUresult known_answer(Session& session, const ContextState* context) {
    const CUresult pending = pending_answer(session, context);
    if (pending != CUDA_ERROR_NOT_PERMITTED) {
        session.print_new_output();
    }
    return pending == CUDA_ERROR_NOT_READY ? CUDA_SUCCESS : pending;
}

// Sends `Call` deferred if the driver will surely accept it; otherwise waits for the reply.
template <class Call, class... Arguments>
CUresult remote_or_ask(bool surely_taken, Arguments... arguments) {
    const WaitForReplies ask_the_driver(!surely_taken);
    return remote<Call>(arguments...);
}

// Waits until all work of the context is complete.
inline CUresult wait_for_context(ContextState& context) {
    const CUresult result = remote<calls::gpContextSynchronize>(context.handle);
    if (result == CUDA_SUCCESS) {
        this_session().note_complete(context);
    }
    return result;
}

}  // namespace gpupool::client
