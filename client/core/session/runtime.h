// The state of the client in its process: not connected, connected, initialised, or a forked child of an initialised
// process.
//
// Ownership: nothing here is ever destroyed.
// Threads: any.
// Errors: CUresult.
#pragma once

#include "client/core/session/session.h"

namespace gpupool::client {

// The session, once cuInit has succeeded; otherwise null, and `result` is set.
Session* session(CUresult& result) noexcept;

// The session, for code in calls that have obtained it with session(). Valid even if it is lost in the meantime.
Session& this_session() noexcept;

// Connects if necessary, for calls that are allowed before cuInit. Null if no server can be reached; a line on stderr
// then says why.
Session* connect_session() noexcept;

CUresult initialize(unsigned flags) noexcept;

// Attaches the parts that use the session (private tables, device heaps, host functions) before the application does.
// They consist of calls, so the definition is in calls/private_view.cpp.
void start_session(Session& session);

}  // namespace gpupool::client
