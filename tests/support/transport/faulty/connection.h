// A decorator that makes any Connection misbehave, reproducibly for a seed.
//
// It delays, throttles and corrupts what is sent, and cuts and splits in both directions. Wrap both ends for a network
// that is slow in both directions. For tests and benchmarks.
//
// Ownership: owns the connection it wraps. Threads: as for Connection; a delayed or throttled connection has a thread
// that delivers. `shutdown()` first delivers what is on the delayed line, for a bounded time. Errors: as for
// Connection; a cut is `closed`.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>

#include "protocol/transport/connection.h"

namespace gpupool::transport::faulty {

struct Faults {
    std::uint64_t seed = 1;
    std::chrono::microseconds delay{0};           // one way
    std::uint64_t throttle_bytes_per_second = 0;  // 0: no limit
    std::size_t split_bytes = 0;                  // sends and receives 1 to this many bytes at a time; 0: whole
    std::optional<std::uint64_t> cut_after_sent;  // the connection breaks after this many bytes were sent
    std::optional<std::uint64_t> cut_after_received;
    std::optional<std::uint64_t> corrupt_sent_at;  // from this byte of the stream on, one bit of each byte is flipped
    std::optional<std::uint64_t> corrupt_received_at;
    std::size_t corrupt_bytes = 1;  // how many bytes are corrupted
};

class DelayLine;

class FaultyConnection final : public Connection {
  public:
    FaultyConnection(std::unique_ptr<Connection> inner, const Faults& faults);
    ~FaultyConnection() override;

    Status send(std::span<const ConstBuffer> buffers) override;
    Result<std::size_t> send_some(std::span<const ConstBuffer> buffers) override;
    Result<std::size_t> receive(MutableBuffer buffer) override;
    void set_receive_deadline(Clock::time_point deadline) noexcept override { inner_->set_receive_deadline(deadline); }
    void shutdown() noexcept override;
    [[nodiscard]] std::string peer() const override { return inner_->peer(); }

    // Breaks the connection now for both sides and drops what is on the delayed line. Callable from any thread.
    void cut() noexcept;

  private:
    Status send_piece(ConstBuffer piece);
    Status deliver(std::span<const ConstBuffer> buffers);
    void damage(MutableBuffer bytes, std::uint64_t position, std::uint64_t from) const;

    const Faults faults_;
    const std::unique_ptr<Connection> inner_;
    std::unique_ptr<DelayLine> line_;  // where there is delay or throttling
    std::atomic<bool> cut_{false};
    std::atomic<bool> shut_down_{false};
    std::minstd_rand send_random_;  // the sending thread's, as is the next
    std::uint64_t sent_bytes_ = 0;
    std::minstd_rand receive_random_;  // the receiving thread's, as is the next
    std::uint64_t received_bytes_ = 0;
};

std::unique_ptr<FaultyConnection> wrap(std::unique_ptr<Connection> inner, const Faults& faults);

}  // namespace gpupool::transport::faulty
