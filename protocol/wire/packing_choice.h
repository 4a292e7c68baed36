// Decides which pieces of bulk data a lane compresses before sending: those for which compression takes less time than
// it saves on the line, so that it never makes sending slower.
//
//   uncompressed: line           compressed: packing + line * ratio      (each in time per byte of data)
//
// The line's time is measured with every piece: how many of the bytes passed to the connection have left this machine
// meanwhile. Time and ratio of packing are measured on a sample of the transfer, which is taken only if the line is so
// slow that a sample costs little in comparison, and then on the packed pieces.
//
// Ownership: one per lane. Threads: the lane's sender. Errors: none. Uses no clock of its own, so that it can be
// tested.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "protocol/wire/compression_mode.h"

namespace gpupool::wire {

class PackingChoice {
  public:
    using Duration = std::chrono::duration<double, std::nano>;

    static constexpr std::size_t kSampleBytes = 32u << 10;

    explicit PackingChoice(CompressionMode mode) noexcept : mode_(mode) {}

    enum class Next {
        send,    // uncompressed
        sample,  // pack kSampleBytes of it, call packed(), and ask again
        pack,
    };
    // What to do with the next piece of a transfer.
    [[nodiscard]] Next next(std::uint64_t transfer, std::size_t bytes);

    // Packing `bytes` resulted in `packed_bytes` (0: not smaller), and took `took`.
    void packed(std::size_t bytes, std::size_t packed_bytes, Duration took);

    // While the last piece was being packed and sent, for `took`, `left_bytes` left this machine. `behind`: unsent
    // bytes remained, so the line was busy all the time.
    void sent(std::size_t left_bytes, bool behind, Duration took);

  private:
    // A new sample of the same transfer is taken after this many pieces, because its data may vary.
    static constexpr unsigned kPiecesPerSample = 16;
    // About how long a sample takes, and the limit of that as a part of the time that the piece needs on the line.
    static constexpr double kSampleNs = 100e3, kMaxForSample = 1.0 / 32;
    // Packing must save at least this part: both times are measurements, and other threads need processors too.
    static constexpr double kLeastSaved = 1.0 / 5;
    // Measurements of less time or fewer bytes say nothing about the line.
    static constexpr std::size_t kLeastLeftBytes = 16u << 10;
    static constexpr Duration kLeastTime = std::chrono::microseconds(20);
    static constexpr double kPartsWhereItKeptUp = 16;

    CompressionMode mode_;
    // In nanoseconds per byte.
    double line_ = 0;     // 0: not known yet, or too fast to measure
    double packing_ = 0;  // 0: not known yet
    double ratio_ = 1;    // of the transfer's data
    std::uint64_t transfer_ = 0;
    unsigned pieces_until_sample_ = 0;
};

}  // namespace gpupool::wire
