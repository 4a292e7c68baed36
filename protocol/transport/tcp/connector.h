// Opens TCP connections.
//
// Threads: any. Errors: `timed_out` or `unavailable`, naming every address that was tried and why it failed.
#pragma once

#include <memory>

#include "protocol/transport/connection.h"
#include "protocol/transport/endpoint.h"

namespace gpupool::transport::tcp {

// Tries every address of `endpoint` in turn, none so long that the ones after it get no chance before `deadline`.
Result<std::unique_ptr<Connection>> connect(const Endpoint& endpoint, Clock::time_point deadline);

}  // namespace gpupool::transport::tcp
