// Reads a connection in the pieces that frames ask for, with few system calls: small pieces come out of a read-ahead
// buffer, large ones go straight to their destination.
//
// Ownership: borrows the connection. Threads: the one that receives. Errors: those of the connection.
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

    // Reads ahead, without waiting, so that at least `bytes` are buffered, if they have arrived. Errors are the next
    // read()'s.
    void gather(std::size_t bytes);
    // The next bytes, which stay; false where fewer are buffered.
    bool peek(std::span<std::byte> out) const;

    // Reads `bytes` and forgets them.
    Status skip(std::size_t bytes);

    // What has been read ahead and not been asked for.
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
