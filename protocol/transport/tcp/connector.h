// Opens TCP connections.
//
// Threads: any. Errors: `unresolved`; `timed_out` or `unavailable`, naming every address that was tried and why it
// failed.
#pragma once

#include <memory>
#include <span>

#include "protocol/transport/connection.h"
#include "protocol/transport/endpoint.h"
#include "protocol/transport/tcp/addresses.h"

namespace gpupool::transport::tcp {

// Tries every address of `endpoint` in turn, none so long that the ones after it get no chance before `deadline`.
Result<std::unique_ptr<Connection>> connect(const Endpoint& endpoint, Clock::time_point deadline);
// The same where they are known already.
Result<std::unique_ptr<Connection>> connect(const Endpoint& endpoint, std::span<const Address> addresses,
                                            Clock::time_point deadline);

}  // namespace gpupool::transport::tcp
