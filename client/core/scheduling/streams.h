// The streams that the application has created.
//
// Ownership: a member of the session.
// Threads: any.
// Errors: none.
#pragma once

#include "client/core/dispatch/handle_map.h"
#include "client/core/session/contexts.h"

namespace gpupool::client {

struct StreamInfo {
    unsigned flags = 0;
    int priority = 0;
    ContextState* context = nullptr;

    // Does it synchronize with the legacy stream? No stream of a green context does.
    [[nodiscard]] bool blocking() const {
        return (flags & CU_STREAM_NON_BLOCKING) == 0 && (context == nullptr || !context->green());
    }
    // Did it end with its green context?
    [[nodiscard]] bool ended() const {
        return context != nullptr && context->green() && !context->live.load(std::memory_order_relaxed);
    }
};

class Streams : public HandleMap<CUstream, StreamInfo> {
  public:
    // The default streams, which exist without being created.
    static bool is_special(CUstream stream) { return codec::to_wire(stream) <= codec::to_wire(CU_STREAM_PER_THREAD); }
    // May the stream be used, by a thread with this current context? `per_thread`: the stream 0 means the thread's own.
    [[nodiscard]] CUresult check(CUstream stream, const ContextState* current, bool per_thread) const {
        if (is_special(stream)) {
            const bool own = stream == CU_STREAM_PER_THREAD || (stream == nullptr && per_thread);
            return own && current != nullptr && current->green() ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
        }
        StreamInfo info;
        if (!find(stream, info)) {
            return CUDA_ERROR_INVALID_HANDLE;
        }
        return info.ended() ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_SUCCESS;
    }
};

}  // namespace gpupool::client
