// The two ends that the benchmarks use, and the far end's threads.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "protocol/transport/connection.h"

namespace gpupool::benchmarks {

using Ends = std::pair<std::unique_ptr<transport::Connection>, std::unique_ptr<transport::Connection>>;

enum class Kind { tcp, shm, inproc };

// A connected pair on this machine; ends the program on an error.
Ends connected_pair(Kind kind);

}  // namespace gpupool::benchmarks
