// Connects a new session with the parts that look into it: the private tables, the device heaps, the host functions.
#pragma once

#include "client/core/session.h"

namespace gpupool::client {

// Called once, before any application call uses the session.
void start_session(Session& session);

}  // namespace gpupool::client
