// A decorator that makes any Connection misbehave, the same way for the same seed.
//
// It delays, throttles and corrupts what is sent, and cuts and splits both ways; wrap both ends for a slow line in both
// directions. Meant for tests and benchmarks.
//
// Ownership: owns the connection it wraps. Threads: as Connection says; a delayed or throttled connection has a thread
//   that delivers. `shutdown()` lets what is on the delayed line arrive first, for a bounded time. Errors: as
//   Connection says; a cut is `closed`.
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
    std::optional<std::uint64_t> cut_after_sent;  // the connection dies when this many bytes have been sent
    std::optional<std::uint64_t> cut_after_received;
    std::optional<std::uint64_t> corrupt_sent_at;  // from this byte of the stream on a bit of each is flipped
    std::optional<std::uint64_t> corrupt_received_at;
    std::size_t corrupt_bytes = 1;  // so many
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

    // Breaks the connection now, for both sides; what is on a delayed line is lost. From any thread.
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
    std::minstd_rand send_random_;  // these two are the sending thread's
    std::uint64_t sent_bytes_ = 0;
    std::minstd_rand receive_random_;  // these two are the receiving thread's
    std::uint64_t received_bytes_ = 0;
};

std::unique_ptr<FaultyConnection> wrap(std::unique_ptr<Connection> inner, const Faults& faults);

}  // namespace gpupool::transport::faulty
