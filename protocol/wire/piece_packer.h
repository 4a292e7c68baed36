// Makes one lane's pieces smaller before they are sent, where that pays (packing_choice.h).
//
// Ownership: one for each lane, which it outlives neither. Threads: the lane's sender. Errors: none: what cannot be
// packed is sent as it is.
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
    // Memory that two processes share is no line.
    PiecePacker(const transport::Connection& line, CompressionMode mode)
        : line_(line), choice_(line.sends_by_copying() ? CompressionMode::never : mode) {}

    // The next piece to send, made smaller; valid until the next call. Empty: it is to be sent as it is.
    std::span<const std::byte> pack(std::uint64_t transfer, std::span<const std::byte> data);

    // The connection has taken it, all in all so much.
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
