// Accepts TCP connections.
//
// Ownership: the listener owns its descriptor. Threads: one accepts, any may shut down. Errors: as Listener.
#pragma once

#include <memory>

#include "protocol/transport/connection.h"
#include "protocol/transport/endpoint.h"

namespace gpupool::transport::tcp {

// Listens on the first address of `endpoint` that can be bound; for port 0 the system picks a free one, see
// Listener::address().
Result<std::unique_ptr<Listener>> listen(const Endpoint& endpoint);

}  // namespace gpupool::transport::tcp
