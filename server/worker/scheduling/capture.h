// Keeps StreamState::capturing in step with the driver.
#pragma once

#include "server/worker/dispatch/views.h"

namespace gpupool::worker {

// Asks the driver whether the stream captures now, and notes it.
void note_capture(SessionView& session, StreamState& stream);
// The same for every stream that is noted as capturing: a capture may have ended.
void note_captures(SessionView& session);
// Call when a capture has ended.
void note_end_of_capture(SessionView& session);
// The stream that began the capture is being destroyed: ends the capture, and destroys its graph unless the client has
// a handle of that already.
void discard_capture(SessionView& session, StreamState& stream);
// Asks the driver whether the stream captures now. A command that names the client's memory must never go to a stream
// that does not: the driver would take the name for an address.
bool captures_now(SessionView& session, StreamState& stream);

}  // namespace gpupool::worker
