// The program's host functions: they run in the client, while the stream waits on a word of pinned memory.
//
// The driver's own callbacks are not used for this: one that waits for the network would block all other callbacks of
// the process.

#include "server/worker/graphs/graph_steps.h"
#include "server/worker/handlers/handlers.h"
#include "server/worker/memory/pinned_memory.h"

namespace gpupool::worker::handlers {
namespace {

// The context must be current.
CUresult take_word(HostFunctionView& session, ContextState& context, HostFunctionWord& wait) {
    if (context.spare_words.empty()) {
        const CUresult result = context.add_words(session.api, session.word_memory, sizeof(std::uint32_t),
                                                  [&](std::uint32_t* word, CUdeviceptr device_word) {
                                                      context.spare_words.push_back({word, device_word, &context});
                                                  });
        if (result != CUDA_SUCCESS) {
            return result;
        }
    }
    wait = context.spare_words.back();
    context.spare_words.pop_back();
    __atomic_store_n(wait.word, 0u, __ATOMIC_RELEASE);
    return CUDA_SUCCESS;
}

}  // namespace

Outcome gpHostFunction(HostFunctionView& session, Command& command, codec::Slots<calls::gpHostFunction>& slots) {
    using Call = calls::gpHostFunction;
    CUresult result = CUDA_SUCCESS;
    std::optional<Submission> submission;
    if (auto outcome = enter<Call>(session, command, slots.at<Call::stream>().value, submission); !submission) {
        return outcome;
    }
    StreamState* const stream = &submission->stream();
    if (stream->capturing) {
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;  // the client uses gpCaptureHostFunction for these
    }
    session.scheduler.enter(stream->context);
    const std::uint64_t ticket = slots.at<Call::ticket>().value;
    if (session.host_functions.contains(ticket)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    HostFunctionWord wait;
    if (result = take_word(session, *stream->context, wait); result != CUDA_SUCCESS) {
        return result;
    }
    session.host_functions[ticket] = wait;
    // When this mark is reached everything before it is complete, so the client may run the function.
    session.scheduler.mark(*stream, [&session, ticket](CUresult status) {
        session.answers.send_host_changes();
        session.answers.notify(codec::NoticeType::host_function, codec::HostFunctionNotice{ticket, status, 0});
    });
    result = driver::call(*submission, session.api.cuStreamWaitValue32_v2, stream->driver, wait.device_word,
                          cuuint32_t{1}, static_cast<unsigned>(CU_STREAM_WAIT_VALUE_EQ));
    if (result != CUDA_SUCCESS) {
        session.host_functions.erase(ticket);  // no stream waits for the word
    }
    submission->end();
    // The word is free again when the stream has passed it. Records no event: the driver may block the dispatcher here,
    // because another call in the driver waits for this word.
    session.scheduler.mark(
        *stream, [context = stream->context, wait](CUresult) { context->spare_words.push_back(wait); }, 0,
        Effect::ours);
    return result;
}

Outcome gpHostFunctionDone(HostFunctionView& session, Command&, codec::Slots<calls::gpHostFunctionDone>& slots) {
    const std::uint64_t ticket = slots.at<calls::gpHostFunctionDone::ticket>().value;
    const auto it = session.host_functions.find(ticket);
    if (it == session.host_functions.end()) {
        return session.graph_steps.function_done(ticket) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    }
    __atomic_store_n(it->second.word, 1u, __ATOMIC_RELEASE);
    session.host_functions.erase(it);
    return CUDA_SUCCESS;
}

}  // namespace gpupool::worker::handlers
