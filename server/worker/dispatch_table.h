// Which function serves an opcode. Split over several translation units, so that none takes long to compile.
#pragma once

#include "server/worker/worker.h"

namespace gpupool::worker {

using Serve = void (*)(Worker&, Command&);

// The function for `opcode`, or nullptr when no such call travels.
Serve serve_function(calls::Opcode opcode) noexcept;

}  // namespace gpupool::worker
