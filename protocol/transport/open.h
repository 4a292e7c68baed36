// Opens the transport that an address stands for: TCP, shared memory, or shared memory if possible and otherwise TCP.
//
// A server that listens on TCP also listens at an abstract Unix name that is derived from its address and port
// (name_at, name_at_all). A client whose server has an address of the client's own host tries that name first: a server
// that answers there is on the same host and in the same network name space, so memory can be shared.
//
// Threads: any. Errors: those of the transport.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/result.h"
#include "common/unique_fd.h"
#include "protocol/transport/connection.h"
#include "protocol/transport/endpoint.h"

namespace gpupool::transport {

enum class Choice {
    automatic,  // shared memory with a server on this host, else TCP
    tcp,
    shm,
};

// "auto", "tcp" or "shm".
Result<Choice> parse_choice(std::string_view text);

// Connects to a server. With `automatic`, a failure to set up shared memory is not an error: TCP is used.
Result<std::unique_ptr<Connection>> connect(const Endpoint& endpoint, Choice choice, Clock::time_point deadline);

Result<std::unique_ptr<Listener>> listen(const Endpoint& endpoint);

// Listens at the local name of a TCP listener's numeric address; null if the address is not one of this host.
Result<std::unique_ptr<Listener>> listen_beside(const Endpoint& tcp_address);

// Takes over a server's end of a connection; `descriptors` come from another process's Connection::descriptors().
Result<std::unique_ptr<Connection>> adopt(std::vector<UniqueFd> descriptors);

}  // namespace gpupool::transport
