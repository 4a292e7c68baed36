// Which streams capture, by the driver's word.
#pragma once

#include "server/worker/worker.h"

namespace gpupool::worker {

// Looks whether the stream captures now.
void note_capture(Worker& worker, StreamState& stream);
// The same for every stream that was known to: a capture has ended.
void note_end_of_capture(Worker& worker);

}  // namespace gpupool::worker
