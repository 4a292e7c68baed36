// Unix stream sockets for shared memory connections: addresses, the peer's identity, passing of descriptors, and
// wake-up bytes.
//
// Ownership: as the types say. Threads: any. Errors: `unavailable` if no process listens, `invalid_input`, `system`.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "common/result.h"
#include "common/unique_fd.h"

namespace gpupool::transport::shm {

struct LocalAddress {
    sockaddr_un storage{};
    socklen_t bytes = 0;

    static Result<LocalAddress> of_path(const std::string& path);
    // In the abstract name space, which is part of the network name space as ports are. Leaves no file behind.
    static Result<LocalAddress> abstract(const std::string& name);

    [[nodiscard]] const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&storage); }
};

Result<UniqueFd> open_socket();

// Never blocks: a Unix socket's listener accepts a connection at once or not at all.
Result<UniqueFd> connect_socket(const LocalAddress& address);

// The process that created the other end, or listened there, as the kernel recorded it.
Result<ucred> peer_of(int socket);

// Fails unless `socket` is a connected Unix stream socket.
Status check_socket(int socket);

// Sends `bytes`, a short message, with descriptors (at most 8).
Status send_with_descriptors(int socket, std::span<const std::byte> bytes, std::span<const int> descriptors);

// Receives exactly `bytes.size()` bytes that were sent as one message, with all descriptors sent along; does not block.
Result<std::vector<UniqueFd>> receive_with_descriptors(int socket, std::span<std::byte> bytes);

// Wakes the thread that sleeps at the other end of `socket`. False if that end is gone.
bool send_wakeup(int socket) noexcept;

// Consumes wake-up bytes. False if the other end is gone.
bool take_wakeups(int socket) noexcept;

}  // namespace gpupool::transport::shm
