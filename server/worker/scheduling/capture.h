// Which streams capture, by the driver's word.
#pragma once

#include "server/worker/dispatch/worker.h"

namespace gpupool::worker {

// Looks whether the stream captures now.
void note_capture(Worker& worker, StreamState& stream);
// The same for every stream that was known to: a capture may have ended.
void note_captures(Worker& worker);
// A capture has ended.
void note_end_of_capture(Worker& worker);
// The stream that began it is to go: ends the capture, and destroys what it made unless the client has that already.
void discard_capture(Worker& worker, StreamState& stream);
// Does the stream capture, by the driver's word now? What names the client's memory may never go to one that does not.
bool captures_now(Worker& worker, StreamState& stream);

}  // namespace gpupool::worker
