// Opens shared memory connections.
//
// Threads: any; never waits. Errors: `unavailable` when nobody listens there, `refused` when whoever does is not
//   trusted, `system`.
#pragma once

#include <memory>
#include <string>

#include "protocol/transport/connection.h"

namespace gpupool::transport::shm {

Result<std::unique_ptr<Connection>> connect_to_path(const std::string& path);

// Any process may have taken an abstract name first. So that no token goes to a stranger, the server must be root's or
// of this process's user.
Result<std::unique_ptr<Connection>> connect_to_name(const std::string& name);

}  // namespace gpupool::transport::shm
