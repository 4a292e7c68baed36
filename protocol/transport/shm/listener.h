// Accepts shared memory connections at a Unix socket.
//
// What was accepted takes the client's memory when it is first used: accepting never waits for a client, and one that
// sends none is given up like one that says nothing (receive() keeps its deadline). Its peer() names process and user
// of the client, as the kernel knows them.
//
// Who may connect: at a path, whom the file's mode and its folders' let write to it; at an abstract name, every process
// in the network name space, as with a loopback port.
//
// Ownership: the listener owns its descriptor, and the socket's file, which goes with it. Threads: one accepts, any may
// shut down. Errors: as Listener says.
#pragma once

#include <memory>
#include <string>

#include "protocol/transport/connection.h"

namespace gpupool::transport::shm {

// At `path`, in place of a socket that nobody listens at any more; `unavailable` when somebody does.
Result<std::unique_ptr<Listener>> listen_at_path(const std::string& path);

// At an abstract name.
Result<std::unique_ptr<Listener>> listen_at_name(const std::string& name);

}  // namespace gpupool::transport::shm
