// Which function serves an opcode.
#pragma once

#include "server/worker/worker.h"

namespace gpupool::worker {

using Serve = void (*)(Worker&, Command&);

// The function for `opcode`, or nullptr when no such call travels.
Serve serve_function(calls::Opcode opcode) noexcept;

}  // namespace gpupool::worker
