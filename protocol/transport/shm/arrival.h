// An accepted connection whose client has not sent the shared memory yet. It takes the memory at its first use and then
// works as any connection.
//
// Ownership: owns the socket, then the connection. Threads, errors: as Connection; `invalid_input` if the client sends
// something else.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "common/mutex.h"
#include "common/unique_fd.h"
#include "protocol/transport/connection.h"

namespace gpupool::transport::shm {

// The client sends this together with the other sockets and the memory. Its digits are the version of the memory's
// layout, which includes the size of the rings (connection.h).
inline constexpr std::array kGreeting = {std::byte{'g'}, std::byte{'p'}, std::byte{'s'}, std::byte{'h'},
                                         std::byte{'m'}, std::byte{'0'}, std::byte{'0'}, std::byte{'1'}};

class Arrival final : public Connection {
  public:
    Arrival(UniqueFd socket, std::string peer) : socket_(std::move(socket)), peer_(std::move(peer)) {}

    // Does not wait for the memory if it has not arrived yet.
    Status send(std::span<const ConstBuffer> buffers) override;
    Result<std::size_t> send_some(std::span<const ConstBuffer> buffers) override;
    Result<std::size_t> receive(MutableBuffer buffer) override;
    Result<std::size_t> receive_some(MutableBuffer buffer) override;
    Result<Readiness> receive_readiness() override;
    Result<Readiness> send_readiness() override;
    void set_receive_deadline(Clock::time_point deadline) noexcept override;
    void set_send_timeout(std::chrono::milliseconds timeout) noexcept override;
    void shutdown() noexcept override;
    [[nodiscard]] std::string peer() const override { return peer_; }
    [[nodiscard]] int native_handle() const noexcept override;
    [[nodiscard]] std::vector<int> descriptors() const override;

  private:
    Result<Connection*> inner(Clock::time_point deadline);
    Status take_memory() GP_REQUIRES(mutex_);

    Mutex greeting_ GP_ACQUIRED_BEFORE(mutex_);  // held while waiting for the greeting
    mutable Mutex mutex_;
    UniqueFd socket_ GP_GUARDED_BY(mutex_);  // until made_ owns it
    const std::string peer_;
    bool shut_down_ GP_GUARDED_BY(mutex_) = false;
    std::unique_ptr<Connection> made_ GP_GUARDED_BY(mutex_);
    std::atomic<Connection*> ready_{nullptr};    // made_, once it exists
    Clock::time_point deadline_ = kNoDeadline;   // used by the receiving thread only
    std::chrono::milliseconds send_timeout_{0};  // used by the sending thread only
};

}  // namespace gpupool::transport::shm
