// The client's life in its process: not connected, connected, initialised, or a forked child of an initialised process.
//
// Threads: any. Ownership: nothing here is ever destroyed.
#pragma once

#include "client/core/session/session.h"

namespace gpupool::client {

// The session once cuInit has succeeded; null with `result` set otherwise.
Session* session(CUresult& result) noexcept;

// The same within a call that has found it to be there: it stays when it is lost meanwhile.
Session& this_session() noexcept;

// Connects if need be, for what may be asked before cuInit. Null when no server can be reached: then one line on stderr
// said why.
Session* connect_session() noexcept;

CUresult initialize(unsigned flags) noexcept;

// Connects a new session with the parts that look into it (the private tables, the device heaps, the host functions),
// before any application call uses it. These are made of calls, so it is defined with them: calls/private_view.cpp.
void start_session(Session& session);

// Logs, once per symbol, that it was refused.
void note_refused(std::uint16_t opcode) noexcept;
// The server's driver has refused a call with CUDA_ERROR_NOT_SUPPORTED: said once per call.
void note_unsupported(std::uint16_t opcode) noexcept;
// The call was not sent, since client and server have not agreed on it: said once per call.
void note_not_agreed(const Session& session, std::uint16_t opcode) noexcept;

}  // namespace gpupool::client
