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

// Tries the addresses of `endpoint` one after the other, dividing the time until `deadline` among them.
Result<std::unique_ptr<Connection>> connect(const Endpoint& endpoint, Clock::time_point deadline);
// The same with addresses that are already resolved.
Result<std::unique_ptr<Connection>> connect(const Endpoint& endpoint, std::span<const Address> addresses,
                                            Clock::time_point deadline);

}  // namespace gpupool::transport::tcp
