// What the client knows of a stream.
#pragma once

#include "client/core/scheduling/streams.h"

namespace gpupool::client::entry {

// The special streams are the current context's.
CUresult find_stream(CUstream stream, StreamInfo& info);

// Waits until the stream has nothing left to do; everything copied back in it has landed then.
CUresult synchronize_stream(CUstream stream);

// The stream has nothing left to do that came before this thread's last call: it has waited for it.
void note_complete(CUstream stream);

}  // namespace gpupool::client::entry
