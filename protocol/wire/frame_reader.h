// Reads a connection in the portions that frames need, with few system calls: small portions come from a read-ahead
// buffer, large ones are received directly into their destination.
//
// Ownership: borrows the connection. Threads: only the receiving thread. Errors: those of the connection.
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "common/result.h"
#include "protocol/transport/connection.h"

namespace gpupool::wire {

class FrameReader {
  public:
    explicit FrameReader(transport::Connection& connection) : connection_(connection) {}

    // Fills all of `out`.
    Status read(std::span<std::byte> out);

    // Reads ahead, without blocking, so that at least `bytes` are buffered if they have arrived. The next read()
    // reports errors.
    void gather(std::size_t bytes);
    // Copies the next bytes without consuming them; false if fewer are buffered.
    bool peek(std::span<std::byte> out) const;

    // Reads and discards `bytes`.
    Status skip(std::size_t bytes);

    // How many bytes have been read ahead and not been consumed.
    [[nodiscard]] std::size_t buffered_bytes() const noexcept { return end_ - begin_; }

  private:
    static constexpr std::size_t kBufferBytes = 32u << 10;
    static constexpr std::size_t kDirectBytes = 16u << 10;  // from this size on, reading ahead costs more than it saves

    Status refill();

    transport::Connection& connection_;
    std::size_t begin_ = 0;
    std::size_t end_ = 0;
    std::array<std::byte, kBufferBytes> buffer_;
};

}  // namespace gpupool::wire
