// Looking up streams, waiting for them, and noting that they are complete.
//
// Ownership: none.
// Threads: any thread of the application.
// Errors: the driver's.
#pragma once

#include "client/core/scheduling/streams.h"

namespace gpupool::client::entry {

// Finds a stream. Default streams belong to the current context.
CUresult find_stream(CUstream stream, StreamInfo& info);

// Waits until the stream is complete and all data that it copied to the host has arrived.
CUresult synchronize_stream(CUstream stream);

// Notes that the work before this thread's last command in the stream is complete, because that command waited for it.
void note_complete(CUstream stream);

}  // namespace gpupool::client::entry
