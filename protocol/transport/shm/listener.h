// Accepts shared memory connections at a Unix socket.
//
// An accepted connection receives the client's memory at its first use: accept() never waits for a client, and a client
// that sends no memory times out like one that sends no data (receive() keeps its deadline). peer() names the client's
// process and user, as the kernel knows them.
//
// Access: a socket at a path accepts users whom the modes of the file and of its folders let write to it; one with an
// abstract name accepts every process in the network name space, as a loopback port does.
//
// Ownership: the listener owns its descriptor and the socket's file, which it removes. Threads: one accepts, any may
// shut down. Errors: as Listener.
#pragma once

#include <memory>
#include <string>

#include "protocol/transport/connection.h"

namespace gpupool::transport::shm {

// Listens at `path`; replaces a socket on which no process listens any more. `unavailable` if a process does.
Result<std::unique_ptr<Listener>> listen_at_path(const std::string& path);

// Listens at an abstract name.
Result<std::unique_ptr<Listener>> listen_at_name(const std::string& name);

}  // namespace gpupool::transport::shm
