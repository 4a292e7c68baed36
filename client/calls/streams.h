// What the client knows of a stream.
#pragma once

#include "client/core/contexts.h"

namespace gpupool::client::entry {

struct StreamInfo {
    unsigned flags = 0;
    int priority = 0;
    ContextState* context = nullptr;

    // Does it synchronize with the legacy stream?
    [[nodiscard]] bool blocking() const { return (flags & CU_STREAM_NON_BLOCKING) == 0; }
};

// The special streams are the current context's.
CUresult find_stream(CUstream stream, StreamInfo& info);

// Waits until the stream has nothing left to do; everything copied back in it has landed then.
CUresult synchronize_stream(CUstream stream);

// The stream has nothing left to do that came before this thread's last call: it has waited for it.
void note_complete(CUstream stream);

}  // namespace gpupool::client::entry
