// Opens shared memory connections.
//
// Threads: any; never blocks. Errors: `unavailable` if no server listens there, `refused` if the server is not trusted,
// `system`.
#pragma once

#include <memory>
#include <string>

#include "protocol/transport/connection.h"

namespace gpupool::transport::shm {

Result<std::unique_ptr<Connection>> connect_to_path(const std::string& path);

// Any process may have taken an abstract name first. So that no token is sent to another user's process, the server
// must run as root or as this process's user.
Result<std::unique_ptr<Connection>> connect_to_name(const std::string& name);

}  // namespace gpupool::transport::shm
