// Unix stream sockets as shared memory connections use them: addresses, who is at the other end, descriptors on the
// way, and the doorbell.
//
// Ownership: as the types say. Threads: any. Errors: `unavailable` where nobody listens, `invalid_input`, `system`.
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
    // In the abstract name space, which belongs to the network name space as ports do, and where nothing is left
    // behind.
    static Result<LocalAddress> abstract(const std::string& name);

    [[nodiscard]] const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&storage); }
};

Result<UniqueFd> open_socket();

// Never waits: a Unix socket's listener takes a connection at once or not at all.
Result<UniqueFd> connect_socket(const LocalAddress& address);

// Who made the other end, or listened there, as the kernel noted it.
Result<ucred> peer_of(int socket);

// A connected Unix stream socket and nothing else.
Status check_socket(int socket);

// Sends `bytes`, which are few, with descriptors (at most 8).
Status send_with_descriptors(int socket, std::span<const std::byte> bytes, std::span<const int> descriptors);

// Receives exactly `bytes.size()` bytes that were sent at once, with all descriptors that came along; does not wait.
Result<std::vector<UniqueFd>> receive_with_descriptors(int socket, std::span<std::byte> bytes);

// Wakes who sleeps at the other end of `socket`. False when that end is gone.
bool ring(int socket) noexcept;

// Takes what has been rung. False when the other end is gone.
bool take_rings(int socket) noexcept;

}  // namespace gpupool::transport::shm
