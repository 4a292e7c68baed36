// Maps an opcode to the function that serves it, and to what the call table says about serving it early.
#pragma once

#include "server/worker/dispatch/worker.h"

namespace gpupool::worker {

using Serve = void (*)(Worker&, Command&);

// Null if no such call travels.
Serve serve_function(calls::Opcode opcode) noexcept;

// May the command be served while the driver is closed, and before the commands that SetAside holds? See the rules of
// the same names (protocol/calls/rules.h).
enum class Passage : std::uint8_t { none, gets_in, gets_in_first, needs_no_driver };
Passage passage_of(calls::Opcode opcode) noexcept;

}  // namespace gpupool::worker
