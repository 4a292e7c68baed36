// Resolves names to addresses and formats addresses, for the connector and the listener.
//
// Threads: any. Errors: `unresolved` for a name without an address, or if resolving it takes too long.
#pragma once

#include <sys/socket.h>

#include <string>
#include <vector>

#include "common/result.h"
#include "protocol/transport/connection.h"
#include "protocol/transport/endpoint.h"

namespace gpupool::transport::tcp {

struct Address {
    sockaddr_storage storage{};
    socklen_t bytes = 0;

    [[nodiscard]] int family() const noexcept { return storage.ss_family; }
    [[nodiscard]] const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&storage); }
    [[nodiscard]] sockaddr* get() noexcept { return reinterpret_cast<sockaddr*>(&storage); }

    // "10.0.0.7:51234", "[::1]:9470"; "local" for anything that is not IP.
    [[nodiscard]] std::string to_string() const;
};

// All addresses of `endpoint`, at least one, in the system's order of preference.
Result<std::vector<Address>> resolve(const Endpoint& endpoint, Clock::time_point deadline);

// Whether it is an address of this host, as far as this process's network name space shows.
bool is_own(const Address& address);

Result<Address> local_address(int descriptor);
Result<Address> peer_address(int descriptor);

}  // namespace gpupool::transport::tcp
