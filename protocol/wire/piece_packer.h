// Compresses a lane's pieces before they are sent, if that pays (packing_choice.h).
//
// Ownership: one per lane; must not outlive its connection. Threads: the lane's sender. Errors: none: a piece that
// cannot be packed is sent uncompressed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/compression.h"
#include "protocol/transport/connection.h"
#include "protocol/wire/packing_choice.h"

namespace gpupool::wire {

class PiecePacker {
  public:
    // Over shared memory, compression never pays.
    PiecePacker(const transport::Connection& line, CompressionMode mode)
        : line_(line), choice_(line.sends_by_copying() ? CompressionMode::never : mode) {}

    // The next piece to send, compressed; valid until the next call. Empty if it is to be sent uncompressed.
    std::span<const std::byte> pack(std::uint64_t transfer, std::span<const std::byte> data);

    // The connection has accepted the piece, `bytes` in total.
    void sent(std::size_t bytes);

  private:
    using Clock = transport::Clock;

    std::span<const std::byte> compress(std::span<const std::byte> data);

    const transport::Connection& line_;
    PackingChoice choice_;
    Compressor compressor_;
    std::vector<std::byte> copy_;
    Clock::time_point began_{};
    std::size_t unsent_before_ = 0;
};

}  // namespace gpupool::wire
