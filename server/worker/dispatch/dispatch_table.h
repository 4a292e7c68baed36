// Maps an opcode to the function that serves it, and to what the call table says about serving it early.
#pragma once

#include "protocol/calls/call.h"
#include "server/worker/dispatch/views.h"

namespace gpupool::worker {

using Serve = void (*)(Views&, Command&);

// Null if no such call travels.
Serve serve_function(calls::Opcode opcode) noexcept;

Passage passage_of(calls::Opcode opcode) noexcept;

}  // namespace gpupool::worker
