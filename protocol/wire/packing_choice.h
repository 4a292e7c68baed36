// Which pieces of bulk data one lane makes smaller before it sends them: those for which it takes less time than it
// saves on the line, so that it is never slower than not to.
//
//   without: line                 with: packing + line * ratio            (each in time per byte of data)
//
// The line's time is measured with every piece: how much of what was handed over has left this machine meanwhile. Time
// and ratio of packing are those of a sample, taken of a transfer where the line is slow enough for a sample not to
// matter, and then of what was packed.
//
// Ownership: one for each lane. Threads: the lane's sender. Errors: none. No clock of its own, so that it can be
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
        send,    // as it is
        sample,  // pack kSampleBytes of it, tell sampled(), and ask again
        pack,
    };
    // What to do with the next piece of a transfer.
    [[nodiscard]] Next next(std::uint64_t transfer, std::size_t bytes);

    // Packing so many bytes gave so many (`packed_bytes` 0: they would not become smaller), and took so long.
    void packed(std::size_t bytes, std::size_t packed_bytes, Duration took);

    // While the last piece was being packed and sent, for `took`, `left_bytes` left this machine. `behind`: more was
    // left to send, so the line could not have taken more.
    void sent(std::size_t left_bytes, bool behind, Duration took);

  private:
    // Of one transfer a sample is taken anew after so many pieces, since what lies in it may differ.
    static constexpr unsigned kPiecesPerSample = 16;
    // About how long a sample takes, and how much that may be of the time that its piece needs on the line.
    static constexpr double kSampleNs = 100e3, kMaxForSample = 1.0 / 32;
    // What is packed has to save so much: both times are measured, and other threads want processors too.
    static constexpr double kLeastSaved = 1.0 / 5;
    // What left in less time, or was less, says nothing of a line.
    static constexpr std::size_t kLeastLeftBytes = 16u << 10;
    static constexpr Duration kLeastTime = std::chrono::microseconds(20);
    static constexpr double kPartsWhereItKeptUp = 16;

    CompressionMode mode_;
    // In nanoseconds per byte.
    double line_ = 0;     // 0: not known yet, or faster than can be told
    double packing_ = 0;  // 0: not known yet
    double ratio_ = 1;    // of the transfer's data
    std::uint64_t transfer_ = 0;
    unsigned pieces_until_sample_ = 0;
};

}  // namespace gpupool::wire
