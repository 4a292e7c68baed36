// Which function serves an opcode, and what the table says of when it may go.
#pragma once

#include "server/worker/dispatch/worker.h"

namespace gpupool::worker {

using Serve = void (*)(Worker&, Command&);

// The function for `opcode`, or nullptr when no such call travels.
Serve serve_function(calls::Opcode opcode) noexcept;

// May it go while the dispatcher stays out of the driver, and before what is set aside? See the rules of that name.
enum class Passage : std::uint8_t { none, gets_in, gets_in_first, needs_no_driver };
Passage passage_of(calls::Opcode opcode) noexcept;

}  // namespace gpupool::worker
