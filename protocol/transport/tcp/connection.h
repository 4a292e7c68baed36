// A Connection over a TCP socket (or any other connected stream socket that was handed over).
//
// Ownership: the connection owns its descriptor and closes it when destroyed; it does not shut the stream down then, so
//   a daemon that passed the descriptor to a worker simply destroys its connection.
// Threads, errors: as Connection says. No SIGPIPE is ever raised.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "common/spin.h"
#include "protocol/transport/connection.h"
#include "protocol/transport/lookout.h"

namespace gpupool::transport::tcp {

// Takes ownership of a connected stream socket, also when it fails.
Result<std::unique_ptr<Connection>> adopt(int descriptor);

class TcpConnection final : public Connection {
  public:
    // `descriptor` is a connected stream socket; use adopt() for one that has not been checked and set up.
    TcpConnection(int descriptor, std::string peer) : descriptor_(descriptor), peer_(std::move(peer)) {}
    ~TcpConnection() override;
    TcpConnection(const TcpConnection&) = delete;
    TcpConnection& operator=(const TcpConnection&) = delete;

    Status send(std::span<const ConstBuffer> buffers) override;
    Result<std::size_t> send_some(std::span<const ConstBuffer> buffers) override;
    Result<std::size_t> receive(MutableBuffer buffer) override;
    [[nodiscard]] bool can_look() const noexcept override { return lookout_.works(); }
    [[nodiscard]] std::size_t arrived_bytes() const noexcept override;
    Result<std::size_t> receive_some(MutableBuffer buffer) override;
    Status wait_arrival() override;
    void begin_looking() noexcept override { lookout_.begin(); }
    void end_looking() noexcept override;
    void set_receive_deadline(Clock::time_point deadline) noexcept override { deadline_ = deadline; }
    void set_send_patience(std::chrono::milliseconds patience) noexcept override;
    void shutdown() noexcept override;
    [[nodiscard]] std::string peer() const override { return peer_; }
    [[nodiscard]] int native_handle() const noexcept override { return descriptor_; }

  private:
    Result<std::size_t> send_once(std::span<const ConstBuffer> buffers, std::size_t done_bytes, int flags);
    Status wait_readable();
    Result<std::size_t> receive_now(MutableBuffer buffer, int flags);
    [[nodiscard]] Error failure(const char* operation, int errno_value) const;

    const int descriptor_;
    const std::string peer_;
    std::atomic<bool> shut_down_{false};
    Clock::time_point deadline_ = kNoDeadline;  // these two are the receiving thread's
    Spin spin_;
    Lookout lookout_;
    bool watches_ = false;  // who sleeps in wait_arrival() sees what arrives; the lookout's mutex guards it
};

}  // namespace gpupool::transport::tcp
