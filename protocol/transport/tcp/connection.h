// A Connection over a TCP socket (or any other connected stream socket that was passed in).
//
// Ownership: the connection owns its descriptor and closes it when destroyed. It does not shut the stream down then, so
// a daemon that passed the descriptor to a worker simply destroys its connection.
// Threads, errors: as Connection. No SIGPIPE is ever raised. The receiving thread notices after half a minute if the
// peer's host vanished silently: by the kernel's keepalive probes if nothing was sent, else because sent data stays
// unacknowledged.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "common/spin.h"
#include "protocol/transport/connection.h"
#include "protocol/transport/reader_yield.h"

namespace gpupool::transport::tcp {

// After so long without an acknowledgement of sent data, or without any sign of an idle peer, the peer counts as gone.
inline constexpr std::chrono::seconds kAnswerTimeout{30};

// Takes ownership of a connected stream socket, also when it fails.
Result<std::unique_ptr<Connection>> adopt(int descriptor, std::chrono::milliseconds answer_timeout = kAnswerTimeout);

class TcpConnection final : public Connection {
  public:
    // `descriptor` is a connected stream socket; use adopt() for one that has not been checked and set up.
    TcpConnection(int descriptor, std::string peer, std::chrono::milliseconds answer_timeout);
    ~TcpConnection() override;
    TcpConnection(const TcpConnection&) = delete;
    TcpConnection& operator=(const TcpConnection&) = delete;

    Status send(std::span<const ConstBuffer> buffers) override;
    Result<std::size_t> send_some(std::span<const ConstBuffer> buffers) override;
    Result<std::size_t> receive(MutableBuffer buffer) override;
    [[nodiscard]] bool can_poll() const noexcept override { return reader_yield_.works(); }
    [[nodiscard]] std::size_t arrived_bytes() const noexcept override;
    Result<std::size_t> receive_some(MutableBuffer buffer) override;
    Status wait_arrival() override;
    Result<Readiness> receive_readiness() override { return Readiness{descriptor_, false}; }
    Result<Readiness> send_readiness() override { return Readiness{descriptor_, true}; }
    void begin_polling() noexcept override { reader_yield_.begin(); }
    void end_polling() noexcept override;
    void set_receive_deadline(Clock::time_point deadline) noexcept override { deadline_ = deadline; }
    [[nodiscard]] std::size_t unsent_bytes() const noexcept override;
    void set_send_timeout(std::chrono::milliseconds timeout) noexcept override;
    void shutdown() noexcept override;
    [[nodiscard]] std::string peer() const override { return peer_; }
    [[nodiscard]] int native_handle() const noexcept override { return descriptor_; }

  private:
    Result<std::size_t> send_once(std::span<const ConstBuffer> buffers, std::size_t done_bytes, int flags);
    Result<std::size_t> receive_with_timeout(MutableBuffer buffer);
    Status wait_readable();
    // When to check the peer's reachability next.
    [[nodiscard]] Clock::time_point next_check() const;
    [[nodiscard]] bool vanished() noexcept;
    Result<std::size_t> receive_now(MutableBuffer buffer, int flags);
    [[nodiscard]] Error failure(const char* operation, int errno_value) const;

    const int descriptor_;
    const std::string peer_;
    std::atomic<bool> shut_down_{false};
    Clock::time_point deadline_ = kNoDeadline;  // these two are used by the receiving thread only
    std::chrono::milliseconds answer_timeout_;
    std::atomic<Clock::rep> unanswered_since_{0};  // 0: the peer answers
    Spin spin_;
    ReaderYield reader_yield_;
    bool watches_ = false;  // the reader that sleeps in wait_arrival() notices data; guarded by the ReaderYield's mutex
};

}  // namespace gpupool::transport::tcp
